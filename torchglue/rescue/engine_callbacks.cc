#include "torchglue/rescue/engine_callbacks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "torchglue/base/engine_task.h"
#include "torchglue/compat/node.h"
#include "torchglue/step/session.h"

namespace koila {

using torch::autograd::Engine;
using torch::autograd::variable_list;

namespace {

QueueCallbackFn real_queue_callback = nullptr;

std::mutex mutex;  // a device's thread of the engine may queue
std::vector<EngineCallbacks*> watching;  // outermost pass first

// Queues callbacks from within the pass that runs it.
class QueueNode final : public torch::autograd::Node {
 public:
  explicit QueueNode(std::vector<std::function<void()>> callbacks) : callbacks_(std::move(callbacks)) {}
  variable_list apply(variable_list&&) override {
    for (auto& callback : std::exchange(callbacks_, {})) real_queue_callback(&Engine::get_default_engine(), std::move(callback));
    return {};
  }
  std::string name() const override { return "KoilaQueueCallbacks"; }

 private:
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace

void set_real_queue_callback(QueueCallbackFn real) { real_queue_callback = real; }

EngineCallbacks::EngineCallbacks() {
  const std::lock_guard lock(mutex);
  watching.push_back(this);
}

EngineCallbacks::~EngineCallbacks() {
  const std::lock_guard lock(mutex);
  watching.erase(std::find(watching.begin(), watching.end(), this));
}

bool EngineCallbacks::begun() const {
  return std::any_of(queued_.begin(), queued_.end(), [](const auto& q) { return q->begun; });
}

void EngineCallbacks::pass_over() {
  const std::lock_guard lock(mutex);
  for (const auto& q : queued_) from_before_.push_back(std::move(q->callback));
  queued_.clear();
  id_ = -1;
}

std::vector<std::function<void()>> EngineCallbacks::take() {
  const std::lock_guard lock(mutex);
  return std::exchange(from_before_, {});
}

void note_pass_within(int id) {
  const std::lock_guard lock(mutex);
  if (std::any_of(watching.begin(), watching.end(), [&](const EngineCallbacks* w) { return w->id_ == id; })) return;
  if (!watching.empty() && watching.back()->id_ == -1) watching.back()->id_ = id;
}

void queue_callback(Engine* engine, std::function<void()> callback) {
  std::vector<std::function<void()>> before;
  std::shared_ptr<EngineCallbacks::Queued> queued;
  const int id = engine_task();
  {
    const std::lock_guard lock(mutex);
    auto pass = std::find_if(watching.rbegin(), watching.rend(), [&](const EngineCallbacks* w) { return w->id_ == id; });
    if (id != -1 && pass == watching.rend() && !watching.empty() && watching.back()->id_ == -1 && session().owned_by_this_thread()) {
      pass = watching.rbegin();
      (*pass)->id_ = id;
    }
    if (id != -1 && pass != watching.rend()) {
      before = std::exchange((*pass)->from_before_, {});
      queued = std::make_shared<EngineCallbacks::Queued>(EngineCallbacks::Queued{std::move(callback)});
      (*pass)->queued_.push_back(queued);
    }
  }
  for (auto& earlier : before) real_queue_callback(engine, std::move(earlier));
  if (!queued) return real_queue_callback(engine, std::move(callback));
  real_queue_callback(engine, [queued] {
    queued->begun = true;
    queued->callback();
  });
}

void run_callbacks(std::vector<std::function<void()>> callbacks, const std::function<void(const torch::autograd::edge_list&, const variable_list&)>& execute) {
  if (callbacks.empty()) return;
  const NoInterceptGuard no_intercept;
  const at::Tensor nothing = at::zeros({1});
  NodePtr node = make_node<QueueNode>(std::move(callbacks));
  node->add_input_metadata(nothing);
  execute({torch::autograd::Edge(std::move(node), 0)}, {nothing});
}

}  // namespace koila
