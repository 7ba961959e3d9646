#include "torchglue/rescue/tensor_hooks.h"

#include <algorithm>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/own_hook.h"
#include "torchglue/compat/holders.h"
#include "torchglue/compat/hooks.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/operators/gradient.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/region/node.h"
#include "torchglue/rescue/feasible.h"
#include "torchglue/rescue/rewiring.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

using torch::autograd::AutogradMeta;
using torch::autograd::FunctionPreHook;
using torch::autograd::Node;

namespace {

// Says of a tensor that its node has a hook. PyTorch calls it for leaves alone.
class Mark final : public FunctionPreHook {
 public:
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override { return gradients; }
};

// The value that the output of the node's stands for.
TapeValueId value_on(const Tape& tape, const Node& node, size_t output) {
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (!value.is_capture() && value.grad_fn == &node && value.node_number == node.sequence_nr() && value.output_nr == output) return v;
  }
  return kNoTapeValue;
}

bool is_written_to_later(const Tape& tape, TapeValueId v) {
  const TapeValue& value = tape.values()[v];
  // By an autograd.Function, which is no operator: its tensor is another value by now.
  if (const at::Tensor t = value.lock(); t.defined() && !value.is_copied() && tape.find(t.unsafeGetTensorImpl()) != v) return true;
  for (size_t i = static_cast<size_t>(value.producer) + 1; i < tape.ops().size(); ++i) {
    const TapeOp& op = tape.ops()[i];
    if (op.in_place && !op.outputs.empty() && op.outputs[0] != kNoTapeValue && tape.values()[op.outputs[0]].group == value.group) return true;
  }
  return false;
}

}  // namespace

void check_tensor_hooks(const Tape& tape, const Plan& plan, Graphs graphs, const Node& node) {
  auto& its = const_cast<Node&>(node);  // what it is asked has no const form
  for_each_hooked_output(its, [&](std::optional<size_t> output) {
    const TapeValueId v = output ? value_on(tape, node, *output) : kNoTapeValue;
    if (v == kNoTapeValue) throw CannotConvert("a hook (register_hook, retain_grad) hangs on a tensor inside the step that no operator of it has made.");
    if ((!is_as_it_is(plan, v) || graphs == Graphs::kUsedUp) && is_written_to_later(tape, v)) throw CannotConvert("a hook (register_hook, retain_grad) hangs on a tensor inside the step that was written to in place afterwards.");
  });
  // Hooks on several tensors count the nodes that a pass is to come by.
  if (has_hooks(its) && is_held_in_python(node)) throw CannotConvert("the program holds the graph of a tensor inside the step that has a hook (grad_fn, register_multi_grad_hook).");
}

namespace {

bool has_hooks_of_program(const at::Tensor& leaf) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  return meta != nullptr && std::any_of(meta->hooks_.begin(), meta->hooks_.end(), [](const auto& hook) { return !is_own(*hook); });
}

}  // namespace

void check_hooks_of_gradients(const Tape& tape, const std::vector<char>& needed) {
  const auto is_made_again = [&](const TapeOp& op) { return needed[&op - tape.ops().data()] && is_gradient(op.op); };
  if (std::none_of(tape.ops().begin(), tape.ops().end(), is_made_again)) return;
  const HookedNodes hooked(tape);
  std::vector<TapeValueId> stack;
  std::vector<char> seen(tape.values().size(), 0);
  for (const TapeOp& op : tape.ops()) {
    if (!is_made_again(op)) continue;
    for (const TapeRef& ref : op.refs) {
      if (ref.arg == 0) stack.push_back(ref.value);
      const at::Tensor input = ref.arg == 2 ? tape.values()[ref.value].lock() : at::Tensor();
      if (input.defined() && has_hooks_of_program(input)) throw CannotConvert(kGradientComesByHook);
    }
  }
  while (!stack.empty()) {
    const TapeValueId v = stack.back();
    stack.pop_back();
    const TapeValue& value = tape.values()[v];
    if (std::exchange(seen[v], 1) != 0 || !value.differentiable() || value.is_capture()) continue;
    if (hooked.made(value)) throw CannotConvert(kGradientComesByHook);
    for (const TapeRef& ref : tape.ops()[value.producer].refs) stack.push_back(ref.value);
  }
}

void check_hooks_behind_functions(const Tape& tape, const Plan& plan, const std::vector<char>& made) {
  std::vector<Node*> stay;
  for (const Bridge& bridge : tape.bridges()) {
    for (const Bridge::End& end : bridge.ends) {
      if (!bridge.alive.expired() && is_as_it_is(plan, end.value)) stay.push_back(bridge.node->next_edge(end.edge).function.get());
    }
  }
  walk_graph(std::move(stay), [&](Node* node) {
    if (kind_of(*node) == NodeKind::kLeaf || dynamic_cast<RegionNode*>(node) != nullptr) return false;
    for_each_hooked_output(*node, [&](std::optional<size_t> output) {
      const TapeValueId v = output ? value_on(tape, *node, *output) : kNoTapeValue;
      if (v != kNoTapeValue && made[v]) throw CannotConvert("a hook (register_hook, retain_grad) hangs on a tensor inside the step that an autograd.Function has read, and another operator, for which it is made again.");
    });
    return true;
  });
}

void check_hooks_on_the_way(const torch::autograd::edge_list& roots) {
  walk_graph(nodes_of(roots), [](Node* node) {
    if (kind_of(*node) == NodeKind::kLeaf) return false;
    if (has_hooks_or_retains(*node)) throw CannotConvert(kGradientComesByHook);
    return true;
  });
}

TensorHooks::TensorHooks(const Tape& tape, const Plan& plan, const std::vector<char>& needed, const std::vector<char>& real) {
  const auto put_anew = [&](TapeValueId v) { return !tape.values()[v].is_capture() && !is_as_it_is(plan, v) && needed[tape.values()[v].producer]; };
  const auto made_again = [&](TapeValueId v) { return put_anew(v) || real[v]; };
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const at::Tensor t = put_anew(v) ? tape.values()[v].lock() : at::Tensor();
    if (t.defined() && tape.find(t.unsafeGetTensorImpl()) == v) take_from_tensor(v, t);  // what it is now, and not before a write in place
  }
  std::vector<Node*> nodes = nodes_behind(tape);
  add_bridges(tape, nodes);
  walk_graph(std::move(nodes), [&](Node* node) {
    if (kind_of(*node) == NodeKind::kLeaf || dynamic_cast<RegionNode*>(node) != nullptr) return false;
    if (tape.bridge_of(*node) == nullptr) take_from_node(tape, made_again, *node);
    return true;
  });
  for (auto& [v, taken] : taken_) taken.real = !put_anew(v);
}

void TensorHooks::take_from_tensor(TapeValueId value, const at::Tensor& tensor) {
  AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr || (!is_hooked(tensor) && !meta->grad_.defined())) return;
  Taken& taken = taken_[value];
  taken.of_tensor = std::exchange(meta->hooks_, {});
  taken.list = std::exchange(meta->cpp_hooks_list_, nullptr);
  taken.says_retains_grad = std::exchange(meta->retains_grad_, false);
  taken.gradient = meta->grad_;
}

void TensorHooks::take_from_node(const Tape& tape, const std::function<bool(TapeValueId)>& made_again, Node& node) {
  const auto taken_by = [&](std::optional<size_t> output) {
    const TapeValueId v = output ? value_on(tape, node, *output) : kNoTapeValue;
    return v != kNoTapeValue && made_again(v) ? &taken_[v] : nullptr;
  };
  auto& hooks = node.tensor_pre_hooks();
  for (auto& hook : hooks) {
    if (Taken* taken = is_own(*hook) ? nullptr : taken_by(output_of(*hook)); taken != nullptr) taken->of_node.push_back(std::move(hook));
  }
  hooks.erase(std::remove(hooks.begin(), hooks.end(), nullptr), hooks.end());
  auto& retaining = node.retains_grad_hooks();
  for (auto it = retaining.begin(); it != retaining.end();) {
    Taken* taken = taken_by(it->first);
    if (taken != nullptr) taken->retains_grad = std::move(it->second);
    it = taken != nullptr ? retaining.erase(it) : std::next(it);
  }
}

bool TensorHooks::any_was_late(const Tape& tape) const {
  return std::any_of(taken_.begin(), taken_.end(), [&](const auto& entry) {
    return tape.values()[entry.first].read_unhooked && (!entry.second.of_node.empty() || entry.second.retains_grad != nullptr);
  });
}

void TensorHooks::put_on(TapeValueId value, const at::Tensor& tensor) {
  const auto found = taken_.find(value);
  if (found == taken_.end()) return;
  Taken& taken = found->second;
  TORCH_CHECK_WITH(OutOfMemoryError, has_node(tensor) || (taken.of_node.empty() && taken.retains_grad == nullptr), kUnderKoila, "a tensor that has a hook (register_hook, retain_grad) was made again without a graph.");
  const auto edge = torch::autograd::impl::gradient_edge(tensor);
  for (auto& hook : std::exchange(taken.of_node, {})) {
    set_output_of(*hook, edge.input_nr);
    edge.function->add_tensor_pre_hook(std::move(hook));
  }
  if (taken.retains_grad != nullptr) {
    set_output_of(*taken.retains_grad, edge.input_nr);
    edge.function->add_retains_grad_hook(std::move(taken.retains_grad), edge.input_nr);
  }
  AutogradMeta* meta = torch::autograd::impl::materialize_autograd_meta(tensor);
  meta->hooks_ = std::exchange(taken.of_tensor, {});
  meta->cpp_hooks_list_ = std::exchange(taken.list, nullptr);
  meta->retains_grad_ = taken.says_retains_grad;
  meta->grad_ = std::exchange(taken.gradient, at::Tensor());
  // Who reads it looks for hooks at the tensor, of which there may be another one by now.
  if (!is_hooked(tensor)) meta->hooks_.push_back(std::make_unique<Mark>());
}

}  // namespace koila
