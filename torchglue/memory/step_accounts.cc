#include "torchglue/memory/step_accounts.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <thread>
#include <vector>

#include "torchglue/facts/facts.h"
#include "torchglue/graph_walk.h"
#include "torchglue/memory/origin.h"
#include "torchglue/session.h"
#include "torchglue/tensor_memory.h"

namespace koila {

namespace {

using torch::autograd::AccumulateGrad;

// The leaves of a graph seldom change: it is walked in the first steps, and then now and again.
constexpr int64_t kFirstSteps = 4;
constexpr int64_t kEvery = 16;

struct Known {
  int64_t steps = 0;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> leaves;
};
thread_local Known known;

void set_category(const at::Tensor& tensor, koila_category category) {
  const void* memory = tensor.defined() ? memory_of(tensor) : nullptr;
  if (memory != nullptr) session().runtime->set_category(reinterpret_cast<uintptr_t>(memory), category);
}

bool looks_now() { return known.steps <= kFirstSteps || known.steps % kEvery == 0; }

}  // namespace

StepAccounts::StepAccounts(const torch::autograd::edge_list& roots) {
  if (std::this_thread::get_id() == session().owner) facts().before_backward(roots);
  ++known.steps;
  session().runtime->settle_updates();
  if (!looks_now()) return;
  known.leaves.clear();
  walk_graph(nodes_of(roots), [&](torch::autograd::Node* node) {
    if (auto* leaf = dynamic_cast<AccumulateGrad*>(node)) {
      known.leaves.emplace_back(leaf->variable.getIntrusivePtr());
      set_category(leaf->variable, KOILA_PARAMETERS);
    }
    return true;
  });
}

StepAccounts::~StepAccounts() {
  if (looks_now()) {
    for (const auto& weak : known.leaves) {
      const at::Tensor leaf(weak.lock());
      if (leaf.defined()) set_category(leaf.grad(), KOILA_GRADIENTS);
    }
  }
  origin_step_over();
  session().runtime->on_step();
  // While an error is under way the program is not searched.
  if (std::this_thread::get_id() == session().owner) facts().after_step(/*may_search=*/std::uncaught_exceptions() == exceptions_);
}

}  // namespace koila
