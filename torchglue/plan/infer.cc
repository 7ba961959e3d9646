#include "torchglue/plan/infer.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "torchglue/op_traits.h"
#include "torchglue/operators/gradient.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/plan/planned_masks.h"

namespace koila {

namespace {

// An operator without a rule keeps the split of an input in an output of the same extent, often enough to be worth the try.
Placement guess(const TapeValue& out, const OpCall& call, int64_t batch) {
  for (const OpCall::Arg& arg : call.args()) {
    for (const TensorSpec& t : arg.tensors) {
      const Placement& p = t.placement;
      if (p.is_shard() && p.dim < static_cast<int64_t>(out.sizes.size()) && out.sizes[p.dim] == p.extent(batch)) return p;
    }
  }
  return Placement::replicate();
}

// What has to be made whole that is split by rows.
int64_t gathered_bytes(const Tape& tape, const Plan& plan, const TapeOp& op, const OpCall& call) {
  int64_t bytes = 0;
  for (const TapeRef& ref : op.refs) {
    if (plan.placements[ref.value].is_shard() && call.is_whole({ref.arg, ref.element})) bytes += tape.values()[ref.value].bytes();
  }
  return bytes;
}

// Goes over the tape until nothing is found any more that has to be taken as it is.
class Inference {
 public:
  Inference(const Tape& tape, int64_t batch, std::vector<Seed> seeds, Graphs graphs)
      : tape_(tape), batch_(batch), seeds_(std::move(seeds)), masks_(tape, batch), gone_(tape, graphs), graphs_(graphs), device_(tape.values()[seeds_[0].value].device) {}

  Plan infer() {
    take_pinned_as_they_are();
    while (!go_over_the_tape()) {
    }
    look_at_the_call_in_flight();
    count();
    return std::move(plan_);
  }

 private:
  // What somebody may write to behind PyTorch's back (through NumPy) is what it is.
  // In the differentiable part it is only looked at: PyTorch gives no writable array of a tensor that requires grad.
  void take_pinned_as_they_are() {
    for (const TapeValue& value : tape_.values()) {
      if (!value.is_capture() && (tape_.pinned(value.group) || may_be_saved(value))) whole_.insert(value.group);
    }
    for (const TapeValue& value : tape_.values()) {
      if (value.differentiable()) whole_.erase(value.group);
    }
  }

  // By a forward method that has computed it, see Note [Bridges].
  bool may_be_saved(const TapeValue& value) const {
    return !tape_.bridges().empty() && !value.differentiable() && !value.weak.expired() && !tape_.state(tape_.ops()[value.producer].state).grad_mode;
  }

  // False: something more has to be taken as it is, and the placements do not hold.
  bool go_over_the_tape() {
    whole_ops_.clear();
    staged_.clear();
    read_whole_.clear();
    plan_ = Plan{};
    plan_.batch = batch_;
    plan_.seeds = seeds_;
    plan_.placements.resize(tape_.values().size());
    plan_.descends.resize(tape_.values().size());
    plan_.frozen.resize(tape_.ops().size());
    plan_.joins.resize(tape_.ops().size());
    for (const Seed& seed : seeds_) {
      if (seed.created && is_whole(seed.value)) continue;
      const TapeValue& value = tape_.values()[seed.value];
      if (const at::Tensor t = value.lock(); !seed.created && !value.is_copied() && t.defined()) plan_.versions[value.group] = version_of(t);
      plan_.placements[seed.value] = seed.placement;
      plan_.descends[seed.value] = 1;
    }
    return std::all_of(tape_.ops().begin(), tape_.ops().end(), [&](const TapeOp& op) { return go_over(op); });
  }

  bool go_over(const TapeOp& op) {
    const TapeValueId first = op.outputs.empty() ? kNoTapeValue : op.outputs[0];
    if (is_in_seed(tape_, plan_, op)) return true;
    if (first != kNoTapeValue && is_whole(first)) return !keep_graph(op);
    if (cannot_be_made_again(op)) return take_as_it_is(op, first);
    if (!descends(op) || (first != kNoTapeValue && is_created(plan_, first))) return true;
    mark_descendants(op, first);
    if (is_gradient(op.op) && differentiates_unsplit(op)) return leave_drawn(op);
    if (first != kNoTapeValue && is_seed(plan_, first)) return true;  // made from another seed, and taken as it is
    if (!reads_split(plan_, op)) return !drew(op) || (op.in_place && first != kNoTapeValue ? leave_written(first) : leave_drawn(op));
    return place_results(op, first);
  }

  bool place_results(const TapeOp& op, TapeValueId first) {
    OpCall call = call_of(op);
    if (op.in_place && first != kNoTapeValue) plan_.frozen[number_of(op)] = read_whole_.count(tape_.values()[first].group) > 0;
    const Decision decision = decide_on_tape(tape_, plan_, op, call);
    Way way = decision.way;
    if (op.in_place && masks_.asked_of_split()) way = Way::kWhole;
    if (op.in_place && first != kNoTapeValue) {
      const bool kept = way == Way::kJoin || (way == Way::kStage && view_instead(op.op).has_value());
      if (!kept && (drew(op) || !tape_.values()[first].differentiable())) return leave_written(first);
      if (!kept) way = Way::kWhole;
    }
    const bool drawn_whole = way == Way::kWhole && !op.in_place && drew(op);
    if (drawn_whole || decision.drawn) return leave_drawn(op);
    if (way == Way::kReal) return (op_traits(op.op).rule->flags & kRandom) == 0 || leave_drawn(op);
    if (way == Way::kWhole) {
      whole_ops_.push_back(&op);
      for (const TapeRef& ref : op.refs) {
        if (!plan_.placements[ref.value].is_replicate()) read_whole_.insert(tape_.values()[ref.value].group);
      }
    }
    plan_.joins[number_of(op)] = way == Way::kJoin;
    if (way == Way::kStage) staged_.emplace_back(&op, gathered_bytes(tape_, plan_, op, call));
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const TapeValueId out = op.outputs[i];
      if (out == kNoTapeValue) continue;
      const TapeValue& value = tape_.values()[out];
      if (splits(way)) {
        plan_.placements[out] = placement_of_result(call, op, i);
      } else if (!value.is_view && value.device == device_) {
        plan_.placements[out] = guess(value, call, batch_);
      }
    }
    return true;
  }

  // A call that cannot be made again: something that it read, and that is not made again with it, is gone. What it gave is taken as it is.
  bool cannot_be_made_again(const TapeOp& op) {
    return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) {
      const TapeValue& v = tape_.values()[r.value];
      if (v.is_capture() && v.weak.expired()) return true;
      if (tape_.replay()) return false;  // what a checkpoint runs again has to save what it saved before, operator by operator
      return descends(op) && is_read_as_it_is(tape_, plan_, op, r) && gone_(r.value, version_to_read(tape_, plan_, op, r));
    });
  }

  bool take_as_it_is(const TapeOp& op, TapeValueId first) {
    if (descends(op) && keep_graph(op)) return false;
    if (!op.in_place || first == kNoTapeValue || !plan_.descends[op.refs[0].value]) return true;
    return leave_written(first);
  }

  // What was written to in place, all names of it.
  bool leave_written(TapeValueId v) {
    whole_.insert(tape_.values()[v].group);
    return false;
  }

  // What runs at the full batch would draw again, and get other numbers: what it drew is drawn.
  bool leave_drawn(const TapeOp& op) {
    if (keep_graph(op)) return false;
    for (TapeValueId out : op.outputs) {
      if (out != kNoTapeValue) plan_.descends[out] = 0;
    }
    return true;
  }

  // Gradients that flow through what is not split are none of a region's alone: they are taken as they are.
  bool differentiates_unsplit(const TapeOp& op) const {
    std::vector<TapeValueId> stack;
    std::vector<char> seen(tape_.values().size(), 0);
    for (const TapeRef& ref : op.refs) {
      if (ref.arg == 0) stack.push_back(ref.value);
      if (ref.arg == 2) seen[ref.value] = 1;  // it flows no further
    }
    while (!stack.empty()) {
      const TapeValueId v = stack.back();
      stack.pop_back();
      const TapeValue& value = tape_.values()[v];
      if (std::exchange(seen[v], 1) != 0 || !value.differentiable() || value.is_capture()) continue;
      if (plan_.descends[v] == 0 || is_seed(plan_, v)) return true;
      for (const TapeRef& ref : tape_.ops()[value.producer].refs) stack.push_back(ref.value);
    }
    return false;
  }

  void mark_descendants(const TapeOp& op, TapeValueId first) {
    for (TapeValueId out : op.outputs) {
      if (out != kNoTapeValue) plan_.descends[out] = 1;
    }
    if (!op.in_place || first == kNoTapeValue) return;
    for (TapeValueId v = 0; v < first; ++v) {  // every other name of what it wrote to shows it too
      if (tape_.values()[v].group == tape_.values()[first].group) plan_.descends[v] = 1;
    }
  }

  // Note [Graphs that stay]
  // What is taken as it is (the result of a call that cannot be made again, a dropout that was drawn) keeps the graph that it has, and backward goes through
  // it. What joins a region keeps its storage, whoever looks at it; a call that runs again has its result elsewhere, and the old graph may have saved the
  // first one. So such a call below is taken as it is, too; and so is a hooked tensor, whose hook would see one graph's part of its gradient alone. True: one was not so far.
  bool keep_graph(const TapeOp& op) {
    const auto& values = tape_.values();
    const auto differentiable = [&](TapeValueId v) { return v != kNoTapeValue && values[v].differentiable(); };
    if (std::none_of(op.outputs.begin(), op.outputs.end(), differentiable)) return false;
    std::vector<char> below(values.size(), 0);
    ska::flat_hash_set<uint32_t> groups;  // of those: a write through a view is a write to them
    const auto read_by = [&](const TapeOp& reader) {
      for (const TapeRef& ref : reader.refs) {
        if (differentiable(ref.value)) {
          below[ref.value] = 1;
          groups.insert(values[ref.value].group);
        }
      }
    };
    read_by(op);
    bool more = false;
    for (size_t i = number_of(op); i-- > 0;) {
      const TapeOp& before = tape_.ops()[i];
      if (std::none_of(before.outputs.begin(), before.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && (below[out] || (before.in_place && groups.count(values[out].group) > 0)); })) continue;
      if (runs_again(before) || is_hooked_result(before)) {
        for (TapeValueId out : before.outputs) {
          if (out != kNoTapeValue) more |= whole_.insert(values[out].group).second;
        }
      }
      read_by(before);
    }
    return more;
  }

  // Its hook is to see what comes by the graph that stays as well.
  bool is_hooked_result(const TapeOp& op) {
    if (!hooked_) hooked_.emplace(tape_);
    return std::any_of(op.outputs.begin(), op.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && hooked_->made(tape_.values()[out]); });
  }

  bool runs_again(const TapeOp& op) {
    const bool split = std::any_of(op.outputs.begin(), op.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && !plan_.placements[out].is_replicate() && !is_seed(plan_, out); });
    const bool writes = op.in_place && descends(op) && !is_in_seed(tape_, plan_, op);  // once more, and PyTorch counts that
    if (!reads_split(plan_, op)) return writes;
    if (!split && !writes) return false;
    OpCall call = call_of(op);
    return decide_on_tape(tape_, plan_, op, call).way != Way::kJoin || !call.real_arguments().empty();
  }

  void look_at_the_call_in_flight() {
    const TapeOp* pending = tape_.pending();
    if (pending == nullptr || !reads_split(plan_, *pending)) return;
    OpCall call = call_of(*pending);
    Context context{op_traits(pending->op)};
    context.draws_whole = tape_.draws_whole(*pending);
    context.free_to_write = true;  // the interceptor will see
    plan_.pending = Plan::Pending::kWhole;
    if (!splits(decide(call, context).way)) return;
    const bool split = std::any_of(call.outputs().begin(), call.outputs().end(), [](const Placement& p) { return p.is_shard(); });
    plan_.pending = split ? Plan::Pending::kSplit : Plan::Pending::kSummed;
  }

  void count_what_is_made_again(const std::vector<char>& needed) {
    std::vector<char> seen(tape_.values().size(), 0);
    std::vector<TapeRef> refs = read_as_they_are(tape_, plan_, needed);
    while (!refs.empty()) {
      const TapeRef ref = refs.back();
      refs.pop_back();
      const TapeValue& value = tape_.values()[ref.value];
      if (value.is_capture() || std::exchange(seen[ref.value], 1) != 0) continue;
      const at::Tensor t = graphs_ == Graphs::kUsedUp && value.differentiable() ? at::Tensor() : value.lock();
      if (t.defined() && version_of(t) == ref.version) continue;
      if (!value.is_view) plan_.bytes_again += value.bytes();
      const TapeOp& op = tape_.ops()[value.producer];
      std::copy_if(op.refs.begin(), op.refs.end(), std::back_inserter(refs), [&](const TapeRef& read) { return !is_dropped(op, read); });
    }
  }

  // What the plan frees, and what it costs.
  void count() {
    const auto needed = needed_ops(tape_, plan_);
    count_what_is_made_again(needed);
    for (const TapeOp* op : whole_ops_) {
      if (!needed[op - tape_.ops().data()]) continue;
      ++plan_.whole_ops;
      for (const TapeRef& ref : op->refs) {
        if (!plan_.placements[ref.value].is_replicate()) plan_.bytes_whole += tape_.values()[ref.value].bytes();
      }
    }
    for (const auto& [op, bytes] : staged_) {
      if (!needed[op - tape_.ops().data()]) continue;
      plan_.bytes_whole += bytes;
      plan_.gathers += bytes > 0;
    }
    for (size_t i = 0; i < tape_.ops().size(); ++i) {
      if (!needed[i] || tape_.ops()[i].in_place) continue;
      for (TapeValueId out : tape_.ops()[i].outputs) {
        if (out == kNoTapeValue || plan_.placements[out].is_replicate() || is_seed(plan_, out)) continue;
        const TapeValue& value = tape_.values()[out];
        // What a graph holds counts, and what the program holds on the way to the call in flight: elsewhere it is there to stay.
        const bool held = value.differentiable() || (plan_.pending != Plan::Pending::kNotReached && value.held_elsewhere());
        if (!value.is_view && !value.is_capture() && held) plan_.bytes += value.bytes();
      }
    }
  }

  OpCall call_of(const TapeOp& op) {
    OpCall call = call_on_tape(tape_, op, batch_, [&](TapeValueId v) { return plan_.placements[v]; });
    masks_.now_of(op, plan_);
    call.set_counter(masks_);
    return call;
  }
  bool is_whole(TapeValueId v) const { return whole_.count(tape_.values()[v].group) > 0; }
  bool descends(const TapeOp& op) const {
    return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) { return plan_.descends[r.value] != 0 && !is_earlier(tape_, plan_, op, r); });
  }
  size_t number_of(const TapeOp& op) const { return static_cast<size_t>(&op - tape_.ops().data()); }

  const Tape& tape_;
  const int64_t batch_;
  const std::vector<Seed> seeds_;
  PlannedMasks masks_;
  Gone gone_;
  const Graphs graphs_;
  std::optional<HookedNodes> hooked_;
  const at::Device device_;
  Plan plan_;
  // Groups that are written to in place in a way that cannot be split (labels that are masked): no gradient goes through them, so
  // they stay what they are, whole, and are sliced where they are read.
  ska::flat_hash_set<uint32_t> whole_;
  ska::flat_hash_set<uint32_t> read_whole_;                // groups that operators without a rule have read whole so far
  std::vector<const TapeOp*> whole_ops_;                   // operators that read something split and have no rule for it
  std::vector<std::pair<const TapeOp*, int64_t>> staged_;  // those that end a stage, and what they gather
};

}  // namespace

Plan infer_placements(const Tape& tape, int64_t batch, std::vector<Seed> seeds, Graphs graphs) { return Inference(tape, batch, std::move(seeds), graphs).infer(); }

}  // namespace koila
