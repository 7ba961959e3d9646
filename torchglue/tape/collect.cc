#include "torchglue/tape/tape.h"

#include <algorithm>

#include "torchglue/base/tls.h"
#include "torchglue/facts/facts.h"

namespace koila {

namespace {

constexpr size_t kCollectAtLeast = 128;

}  // namespace

void Tape::cut() {
  for (TapeValue& value : values_) {
    if (const auto hold = value.hold.lock()) hold->tensor.reset();
  }
  log_.clear();
  values_.clear();
  groups_.clear();
  states_.clear();
  draws_.clear();
  bridges_.clear();
  index_.clear();
  drop_pending();
  record_ = false;
  differentiable_ = has_gradients_ = false;
  held_for_origins_ = 0;
  held_small_ = 0;
  effects_under_hooks_ &= NoSavedTensorHooksGuard::active();  // what follows may be of the same checkpoint
  capture_hangs_on_tape_ = false;
  own_nodes_.clear();
  nodes_of_gradients_.clear();
  has_run_ = false;
  spent_.clear();
  collect_at_ = kCollectAtLeast;
}

void Tape::collect() {
  // Backwards: an operator is needed when an output of it is alive, or is read by a needed operator.
  std::vector<char> needed_value(values_.size(), 0);
  std::vector<char> needed_op(ops().size(), 0);
  std::vector<char> needed_group(groups_.size(), 0);  // for writes through one alias that another alias shows
  const auto need = [&](TapeValueId v) {
    needed_value[v] = 1;
    needed_group[values_[v].group] = 1;
  };
  for (size_t v = 0; v < values_.size(); ++v) {
    if (!values_[v].is_capture() && values_[v].held_elsewhere()) need(static_cast<TapeValueId>(v));
  }
  for (const Bridge& bridge : bridges_) {
    if (bridge.alive.expired()) continue;
    for (const Bridge::End& end : bridge.ends) need(end.value);
  }
  for (size_t i = ops().size(); i-- > 0;) {
    for (TapeValueId out : ops()[i].outputs) {
      if (out == kNoTapeValue) continue;
      if (needed_value[out] || (ops()[i].in_place && needed_group[values_[out].group])) needed_op[i] = 1;
    }
    if (!needed_op[i]) continue;
    for (const TapeRef& ref : ops()[i].refs) need(ref.value);
  }
  for (size_t i = 0; i < ops().size(); ++i) {
    if (!needed_op[i]) continue;
    for (TapeValueId out : ops()[i].outputs) {
      if (out != kNoTapeValue) needed_value[out] = 1;
    }
  }

  facts().on_forgotten(ops(), values_, needed_op);
  compact(needed_value, needed_op);
  collect_at_ = std::max(kCollectAtLeast, ops().size() + ops().size() / 2);
}

void Tape::keep_apart(const std::vector<char>& taken, const std::function<bool(const at::Tensor&)>& captured) {
  discard();
  std::vector<char> needed_value(values_.size(), 0);
  std::vector<char> needed_op(ops().size(), 0);
  std::vector<char> taken_group(groups_.size(), 0);
  for (size_t v = 0; v < values_.size(); ++v) taken_group[values_[v].group] |= taken[v];
  const auto apart = [&](TapeValueId v) { return v == kNoTapeValue || taken_group[values_[v].group] == 0; };
  for (size_t i = 0; i < ops().size(); ++i) {
    const auto& refs = ops()[i].refs;
    if (!std::all_of(ops()[i].outputs.begin(), ops()[i].outputs.end(), apart)) continue;
    if (!std::all_of(refs.begin(), refs.end(), [&](const TapeRef& r) { return apart(r.value) && (values_[r.value].is_capture() || needed_value[r.value]); })) continue;
    needed_op[i] = 1;
    for (const TapeRef& ref : refs) needed_value[ref.value] = 1;
    for (TapeValueId out : ops()[i].outputs) {
      if (out != kNoTapeValue) needed_value[out] = 1;
    }
  }
  leave_what_is_hung_on(apart, needed_value, needed_op);
  // What has been taken must not hang on what stays: that would change under it when it is taken in turn.
  for (size_t v = 0; v < values_.size(); ++v) {
    const TapeValue& value = values_[v];
    const at::Tensor t = needed_value[v] && !value.is_capture() && value.differentiable() ? value.lock() : at::Tensor();
    if (t.defined() && captured(t)) {
      cut();
      return;
    }
  }
  compact(needed_value, needed_op);
}

// The same of operators that go without having been taken: their graphs are there as they were, and have saved what they read. What made that goes as well, with all that was made of it.
void Tape::leave_what_is_hung_on(const std::function<bool(TapeValueId)>& apart, std::vector<char>& needed_value, std::vector<char>& needed_op) const {
  const auto made_by = [&](const TapeRef& ref) { return values_[ref.value].producer; };
  const auto leave = [&](size_t i) {
    needed_op[i] = 0;
    for (TapeValueId out : ops()[i].outputs) {
      if (out != kNoTapeValue && values_[out].producer == static_cast<int32_t>(i)) needed_value[out] = 0;
    }
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = ops().size(); i-- > 0;) {
      const TapeOp& op = ops()[i];
      if (needed_op[i] || !makes_graph(op) || !std::all_of(op.outputs.begin(), op.outputs.end(), apart)) continue;
      for (const TapeRef& ref : op.refs) {
        if (made_by(ref) != kNoProducer && needed_op[made_by(ref)]) leave(made_by(ref));
      }
    }
    for (size_t i = 0; i < ops().size(); ++i) {
      if (!needed_op[i] || std::all_of(ops()[i].refs.begin(), ops()[i].refs.end(), [&](const TapeRef& r) { return made_by(r) == kNoProducer || needed_op[made_by(r)]; })) continue;
      leave(i);
      changed = true;
    }
  }
}

// What stays moves down in place: the vectors keep their memory.
void Tape::compact(const std::vector<char>& needed_value, const std::vector<char>& needed_op) {
  std::vector<TapeValueId> new_id(values_.size(), kNoTapeValue);
  std::vector<int32_t> new_op;
  log_.keep(needed_op, new_op);
  std::vector<Group> groups;
  std::vector<uint32_t> new_group(groups_.size(), UINT32_MAX);
  index_.clear();
  size_t values = 0;
  for (size_t v = 0; v < values_.size(); ++v) {
    TapeValue& value = values_[v];
    if (!needed_value[v]) {
      held_small_ -= value.small;
      continue;
    }
    new_id[v] = static_cast<TapeValueId>(values);
    if (new_group[value.group] == UINT32_MAX) {
      new_group[value.group] = static_cast<uint32_t>(groups.size());
      groups.push_back(groups_[value.group]);
    }
    value.group = new_group[value.group];
    if (!value.is_capture()) value.producer = new_op[value.producer];
    if (!value.weak.expired() && !value.is_copied()) index_[value.weak._unsafe_get_target()] = new_id[v];
    if (values != v) values_[values] = std::move(value);
    ++values;
  }
  values_.erase(values_.begin() + static_cast<ptrdiff_t>(values), values_.end());
  log_.renumber([&](TapeValueId id) { return new_id[id]; });
  for (TapeRef& ref : pending_refs_) ref.value = new_id[ref.value];
  uint32_t draws = 0;
  log_.renumber_draws([&](uint32_t old) {
    if (draws != old) draws_[draws] = std::move(draws_[old]);
    return draws++;
  });
  draws_.erase(draws_.begin() + draws, draws_.end());
  groups_ = std::move(groups);
  renumber_bridges(new_id);
}

}  // namespace koila
