// Nodes of the program's own between values of the tape.
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "torchglue/operators/gradient.h"
#include "torchglue/tape/node_kind.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Note [Bridges]
// An autograd.Function cannot be run again, so what it gave is taken as it is: a capture. But its node hangs on the graph of what it was given. Where the tape knows all that the node's edges lead to, the
// step goes on behind it. A conversion splits the step on both sides, in two regions, and has the edges lead to the first one's values instead of the old graph (see Rewiring).
// The node may have saved what it was given, and whatever its forward method computed. So the memory of the values that its edges lead to stays as it is, and what operators without gradients gave
// is not made again. It has been given what was drawn at random for the full batch, so that stays, too.
bool Tape::bridge(const torch::autograd::Node* node) {
  if (node == nullptr || kind_of(*node) != NodeKind::kOther || may_have_made(*node)) return false;
  return add_bridges(const_cast<torch::autograd::Node*>(node), {});
}

// `passable`: values whose operators are a part of the bridge.
bool Tape::add_bridges(torch::autograd::Node* node, const std::vector<char>& passable) {
  std::vector<Bridge> found;
  if (!find_bridges(node, passable, found)) return false;
  for (Bridge& made : found) {
    auto hold = std::make_shared<Hold>();
    made.alive = hold;
    made.node->add_pre_hook(std::make_unique<HoldHook>(std::vector<std::shared_ptr<Hold>>{std::move(hold)}));
    bridges_.push_back(std::move(made));
  }
  return true;
}

bool Tape::find_bridges(torch::autograd::Node* node, const std::vector<char>& passable, std::vector<Bridge>& found) const {
  const auto is_known = [&](const Bridge& bridge) { return bridge.node == node; };
  if (bridge_of(*node) != nullptr || std::any_of(found.begin(), found.end(), is_known)) return true;
  Bridge made{node, {}, {}};
  std::vector<torch::autograd::Node*> behind;
  for (uint32_t i = 0; i < node->num_outputs(); ++i) {
    const torch::autograd::Edge& edge = node->next_edge(i);
    if (!edge.is_valid() || kind_of(*edge.function) == NodeKind::kLeaf || !hangs_on_tape(edge.function.get())) continue;
    const TapeValueId value = value_on(*edge.function, edge.input_nr);
    if (value != kNoTapeValue && (passable.empty() || !passable[value])) {
      if (values_[value].version != groups_[values_[value].group].version) return false;  // written to since
      made.ends.push_back({i, value});
    } else if (value != kNoTapeValue || kind_of(*edge.function) == NodeKind::kOther) {
      behind.push_back(edge.function.get());
    } else {
      return false;
    }
  }
  found.push_back(std::move(made));
  return std::all_of(behind.begin(), behind.end(), [&](torch::autograd::Node* next) { return find_bridges(next, passable, found); });
}

// Operators that cannot be made again, and in `opaque` the values that they gave. Only what has memory for itself can stand for itself.
std::vector<char> Tape::read_what_is_gone(std::vector<char>& opaque) const {
  std::vector<size_t> in_group(groups_.size(), 0);
  for (const TapeValue& value : values_) ++in_group[value.group];
  std::vector<char> operators(ops().size(), 0);
  for (size_t i = 0; i < ops().size(); ++i) {
    const TapeOp& op = ops()[i];
    const auto is_gone = [&](const TapeRef& ref) {
      const TapeValue& value = values_[ref.value];
      return opaque[ref.value] ? value.weak.expired() : value.is_capture() && value.grad_fn != nullptr && !value.strong.defined() && value.weak.expired();
    };
    const auto stands_alone = [&](TapeValueId out) { return out != kNoTapeValue && values_[out].grad_fn != nullptr && in_group[values_[out].group] == 1; };
    if (op.in_place || is_gradient(op.op) || std::none_of(op.refs.begin(), op.refs.end(), is_gone)) continue;
    if (!std::all_of(op.outputs.begin(), op.outputs.end(), stands_alone)) continue;
    operators[i] = 1;
    for (TapeValueId out : op.outputs) opaque[out] = 1;
  }
  return operators;
}

// `x + f(x)`: when the sum has been made, nobody holds what f gave.
void Tape::widen_bridges() {
  if (bridges_.empty()) return;
  std::vector<char> opaque(values_.size(), 0);
  std::vector<char> kept = read_what_is_gone(opaque);
  if (std::none_of(kept.begin(), kept.end(), [](char is_opaque) { return is_opaque != 0; })) return;
  for (TapeValueId v = 0; v < values_.size(); ++v) {
    const at::Tensor t = opaque[v] ? values_[v].lock() : at::Tensor();
    if (t.defined() && !(node_of(t) == values_[v].grad_fn && add_bridges(const_cast<torch::autograd::Node*>(node_of(t)), opaque))) return;
  }
  for (char& keep : kept) keep = !keep;
  std::vector<char> needed(values_.size(), 0);
  for (size_t i = 0; i < ops().size(); ++i) {
    if (!kept[i]) continue;
    for (const TapeRef& ref : ops()[i].refs) needed[ref.value] = 1;
    for (TapeValueId out : ops()[i].outputs) {
      if (out != kNoTapeValue) needed[out] = 1;
    }
  }
  if (pending_) {
    for (const TapeRef& ref : pending_refs_) needed[ref.value] = 1;
  }
  for (TapeValueId v = 0; v < values_.size(); ++v) {
    if (!opaque[v]) continue;
    values_[v].producer = kNoProducer;
    values_[v].requires_grad = true;
    groups_[values_[v].group].on_capture = true;
    needed[v] |= !values_[v].weak.expired();
  }
  compact(needed, kept);
}

bool Tape::forget_from(uint64_t node_number) {
  std::vector<char> kept(ops().size(), 1), gone(values_.size(), 0), needed(values_.size(), 0);
  for (size_t i = 0; i < ops().size(); ++i) {
    const TapeOp& op = ops()[i];
    const auto is_own = [&](TapeValueId out) { return out != kNoTapeValue && values_[out].producer == static_cast<int32_t>(i); };
    const auto is_late = [&](TapeValueId out) { return is_own(out) && values_[out].grad_fn != nullptr && values_[out].node_number >= node_number; };
    kept[i] = std::none_of(op.outputs.begin(), op.outputs.end(), is_late) && std::none_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return gone[ref.value] != 0; });
    for (TapeValueId out : op.outputs) {
      if (out != kNoTapeValue && (kept[i] || is_own(out))) (kept[i] ? needed : gone)[out] = 1;
    }
    for (const TapeRef& ref : op.refs) {
      if (kept[i]) needed[ref.value] = 1;
      if (!kept[i] && op.in_place && ref.arg == 0 && !gone[ref.value]) return false;
    }
  }
  for (TapeValueId v = 0; v < values_.size(); ++v) {
    if (gone[v] && values_[v].is_view) let_go(values_[v]);
  }
  compact(needed, kept);
  return true;
}

// A node may lie where another one was that is gone.
TapeValueId Tape::value_on(const torch::autograd::Node& node, uint32_t output_nr) const {
  for (size_t v = values_.size(); v-- > 0;) {
    const TapeValue& value = values_[v];
    if (!value.is_capture() && value.grad_fn == &node && value.node_number == node.sequence_nr() && value.output_nr == output_nr) return static_cast<TapeValueId>(v);
  }
  return kNoTapeValue;
}

const Bridge* Tape::bridge_of(const torch::autograd::Node& node) const {
  const auto found = std::find_if(bridges_.begin(), bridges_.end(), [&](const Bridge& bridge) { return bridge.node == &node && !bridge.alive.expired(); });
  return found == bridges_.end() ? nullptr : &*found;
}

bool Tape::is_behind_bridge(const TapeOp& op) const {
  if (bridges_.empty()) return false;
  int32_t last = kNoProducer;
  for (const Bridge& bridge : bridges_) {
    for (const Bridge::End& end : bridge.ends) last = std::max(last, values_[end.value].producer);
  }
  const TapeOp* first = ops().data();
  return !std::less<>{}(&op, first) && std::less<>{}(&op, first + (last + 1));
}

// Those whose values are a region's now hang on that.
void Tape::renumber_bridges(const std::vector<TapeValueId>& new_id) {
  bool torn = false;
  const auto is_gone = [&](Bridge& bridge) {
    if (bridge.alive.expired()) return true;
    const auto lost = [&](const Bridge::End& end) { return new_id[end.value] == kNoTapeValue; };
    const size_t left = bridge.ends.size();
    bridge.ends.erase(std::remove_if(bridge.ends.begin(), bridge.ends.end(), lost), bridge.ends.end());
    for (Bridge::End& end : bridge.ends) end.value = new_id[end.value];
    torn |= bridge.ends.size() != left && !bridge.ends.empty();
    return left > 0 && bridge.ends.empty();
  };
  bridges_.erase(std::remove_if(bridges_.begin(), bridges_.end(), is_gone), bridges_.end());
  if (torn) cut();
}

}  // namespace koila
