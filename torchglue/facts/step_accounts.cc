#include "torchglue/facts/step_accounts.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <string_view>
#include <thread>
#include <typeinfo>
#include <vector>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/facts/facts.h"
#include "torchglue/memory/origin.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

using torch::autograd::AccumulateGrad;

// The graph is walked in the first steps, and then now and again.
constexpr int64_t kFirstSteps = 8;
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

bool looks_now() { return known.steps <= kFirstSteps || known.steps % kEvery == 1; }

// torch.utils.checkpoint with use_reentrant=True is an autograd.Function of Python's. Names are made anew each time they are asked for.
bool is_checkpoint(const torch::autograd::Node& node) {
  return std::string_view(typeid(node).name()).find("PyNode") != std::string_view::npos && node.name() == "CheckpointFunctionBackward";
}

void look_at_graph(const torch::autograd::edge_list& roots, bool owner) {
  known.leaves.clear();
  int64_t half = 0;
  bool checkpoint = false;
  walk_graph(nodes_of(roots), [&](torch::autograd::Node* node) {
    if (const auto* leaf = dynamic_cast<AccumulateGrad*>(node)) {
      const at::Tensor& variable = leaf->variable;
      known.leaves.emplace_back(variable.getIntrusivePtr());
      set_category(variable, KOILA_PARAMETERS);
      if (variable.layout() == at::kStrided && variable.element_size() == 2) half += static_cast<int64_t>(variable.nbytes());
    } else {
      checkpoint = checkpoint || (owner && is_checkpoint(*node));
    }
    return true;
  });
  if (owner) facts().on_graph(half, checkpoint);
}

}  // namespace

const std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>>& leaves_of_step() { return known.leaves; }

void forget_leaves_of_step() { known.leaves.clear(); }

StepAccounts::StepAccounts(const torch::autograd::edge_list& roots) {
  const bool owner = std::this_thread::get_id() == session().owner;
  if (owner) facts().before_backward();
  ++known.steps;
  session().runtime->begin_backward();
  if (!looks_now()) return;
  try {
    look_at_graph(roots, owner);
  } catch (const std::exception&) {  // no memory to look: the pass has more need of it
  }
}

StepAccounts::~StepAccounts() {
  if (looks_now()) {
    for (const auto& weak : known.leaves) {
      const at::Tensor leaf(weak.lock());
      if (leaf.defined()) set_category(leaf.grad(), KOILA_GRADIENTS);
    }
  }
  origin_step_over();
  // A pass that an error has ended is no step: the program dies of it, or makes the step again. And while an error is under way the program is not searched.
  const bool whole = std::uncaught_exceptions() == exceptions_;
  if (whole) session().runtime->on_step();
  if (std::this_thread::get_id() == session().owner) facts().after_step(/*may_search=*/whole);
}

}  // namespace koila
