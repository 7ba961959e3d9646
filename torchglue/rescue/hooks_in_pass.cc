#include "torchglue/rescue/hooks_in_pass.h"

#include <algorithm>

#include "torchglue/base/own_hook.h"
#include "torchglue/region/node.h"
#include "torchglue/rescue/feasible.h"

namespace koila {

using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

class Reached final : public OwnHook {
 public:
  explicit Reached(std::shared_ptr<bool> reached) : reached_(std::move(reached)) {}
  variable_list operator()(const variable_list& gradients) override {
    *reached_ = true;
    return gradients;
  }
  // A compiled pass calls the program's hooks itself, and not this one.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override { *reached_ = true; }

 private:
  std::shared_ptr<bool> reached_;
};

}  // namespace

void HooksInPass::begin(const Tape& tape, Node& node) {
  Watched& w = watched_.emplace_back();
  w.node = RegionNode::owner(&node);
  w.reached = std::make_shared<bool>(false);
  w.has_hooks = has_hooks(node);
  for (const TapeValue& value : tape.values()) {
    if (value.grad_fn != &node || node.retains_grad_hooks().count(static_cast<int>(value.output_nr)) == 0) continue;
    if (const at::Tensor t = value.lock(); t.defined()) w.retaining.emplace_back(t, t.grad());
  }
  auto& hooks = node.tensor_pre_hooks();
  w.watch = hooks.insert(hooks.begin(), std::make_unique<Reached>(w.reached))->get();
}

void HooksInPass::stop_watching() {
  for (Watched& w : watched_) {
    auto& hooks = w.node->tensor_pre_hooks();
    const auto ours = std::find_if(hooks.begin(), hooks.end(), [&](const auto& hook) { return hook.get() == w.watch; });
    if (ours != hooks.end()) hooks.erase(ours);
    w.watch = nullptr;
  }
}

std::vector<char> HooksInPass::reached() const {
  std::vector<char> reached;
  for (const Watched& w : watched_) reached.push_back(*w.reached);
  return reached;
}

void HooksInPass::forget_pass_within(const std::vector<char>& reached) {
  for (size_t i = 0; i < reached.size(); ++i) {
    Watched& w = watched_[i];
    if (reached[i] || !*w.reached) continue;
    *w.reached = false;
    for (auto& [tensor, gradient] : w.retaining) gradient = tensor.grad();
  }
}

void HooksInPass::check(const std::function<bool(Node&)>& runs_again, const PastBridges& past) const {
  for (const Watched& w : watched_) {
    if (!*w.reached || past.is_past(*w.node)) continue;
    if (w.has_hooks) throw CannotConvert("a hook (register_hook) on a tensor inside the step has run already, and may have used its gradient. A step that begins in micro-batches (KOILA_MODE=lazy) runs it once.");
    if (!runs_again(*w.node)) throw CannotConvert("a tensor inside the step has retained its gradient already (retain_grad), and what led to it is done.");
  }
}

void HooksInPass::put_back(const PastBridges& past) const {
  for (const Watched& w : watched_) {
    if (past.is_past(*w.node)) continue;
    for (const auto& [tensor, gradient] : w.retaining) tensor.mutable_grad() = gradient;
  }
}

}  // namespace koila
