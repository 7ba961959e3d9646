// What is left on the tape behind a backward pass at the full batch.
#include <algorithm>

#include "torchglue/base/graph_walk.h"
#include "torchglue/operators/saved.h"
#include "torchglue/tape/tape.h"

namespace koila {

using torch::autograd::Node;

// Note [Graphs that are left]
// A backward pass ends the step, but for graphs that a later pass goes along: one that is kept (`autograd.grad(loss, weight, retain_graph=True)` weighs losses, and the step goes on), and one that the
// pass has not come by (a generator's, while the discriminator learns from what is detached; hidden states, while a loss of theirs is taken in chunks). What was recorded of these stays, and what runs
// out later can be made again; what the pass has used up goes, with all that was made of it. An optimizer's step is the end of it: a pass along a graph whose parameters have been written to raises
// PyTorch's error.
void Tape::pass_over(const std::vector<Node*>& roots, bool kept) {
  if (!kept && !forget_used_up(roots)) return cut();
  has_run_ = true;
  collect();
}

// What the program still holds of it enters anew, as a tensor from before the tape, and does not end it.
bool Tape::is_spent(const Node& node) const {
  return std::any_of(spent_.begin(), spent_.end(), [&](const Spent& one) { return one.node == &node && one.number == node.sequence_nr() && !one.tensor.expired(); });
}

// Drops what hangs on the nodes of a pass. False where no graph is left that the program holds, or that can be told apart: then the tape is to be cut.
bool Tape::forget_used_up(const std::vector<Node*>& roots) {
  if (!bridges_.empty()) return false;
  ska::flat_hash_set<const Node*> left;  // of the program's tensors, those that no node of the pass was found to be
  for (const TapeValue& value : values_) {
    if (value.is_capture() || !value.differentiable() || !value.held_elsewhere()) continue;
    const at::Tensor t = value.lock();
    const Node* node = t.defined() ? node_of(t) : nullptr;
    if (node != nullptr && node == value.grad_fn) left.insert(node);
  }
  ska::flat_hash_map<const void*, uint64_t> used;
  walk_graph(roots, [&](Node* node) {
    if (left.empty()) return false;
    used.emplace(node, node->sequence_nr());
    left.erase(node);
    return true;
  });
  if (left.empty()) return false;

  // Of a node that has saved nothing, such as a view's, a second pass may come by.
  const auto is_used = [&](TapeValueId v) {
    const TapeValue& value = values_[v];
    const auto node = value.is_capture() || value.grad_fn == nullptr ? used.end() : used.find(value.grad_fn);
    if (node == used.end() || node->second != value.node_number) return false;
    return may_save_anything(ops()[static_cast<size_t>(value.producer)].op.schema());
  };
  std::vector<char> needed_value(values_.size(), 0), needed_op(ops().size(), 0), written(groups_.size(), 0);
  for (size_t i = 0; i < ops().size(); ++i) {
    const TapeOp& op = ops()[i];
    const bool gone = std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return !values_[ref.value].is_capture() && needed_value[ref.value] == 0; }) ||
                      std::any_of(op.outputs.begin(), op.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && is_used(out); });
    for (TapeValueId out : op.outputs) {
      if (out == kNoTapeValue) continue;
      if (gone) written[values_[out].group] |= op.in_place;
      if (values_[out].producer == static_cast<int32_t>(i)) needed_value[out] = !gone;  // else it hands on what another one has made
    }
    if (gone) continue;
    needed_op[i] = 1;
    for (const TapeRef& ref : op.refs) needed_value[ref.value] = 1;
  }
  leave_what_is_hung_on([&](TapeValueId v) { return v == kNoTapeValue || !is_used(v); }, needed_value, needed_op);
  for (size_t v = 0; v < values_.size(); ++v) {
    if (needed_value[v] && written[values_[v].group]) return false;  // memory that an operator which goes has written to
  }
  std::erase_if(spent_, [](const Spent& one) { return one.tensor.expired(); });
  for (TapeValueId v = 0; v < values_.size(); ++v) {
    if (!needed_value[v] && is_used(v) && values_[v].held_elsewhere()) spent_.push_back({values_[v].weak, values_[v].grad_fn, values_[v].node_number});
  }
  compact(needed_value, needed_op);
  return std::any_of(ops().begin(), ops().end(), [&](const TapeOp& op) { return makes_graph(op); });
}

}  // namespace koila
