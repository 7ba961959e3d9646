#include "torchglue/rescue/feasible.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/oom/events.h"
#include "torchglue/op_traits.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/plan/seeds.h"
#include "torchglue/region/node.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/successors.h"
#include "torchglue/operators/saved.h"
#include "torchglue/rescue/call_of_tape.h"
#include "torchglue/rescue/made_again.h"
#include "torchglue/rescue/rewiring.h"
#include "torchglue/rescue/staying.h"
#include "torchglue/rescue/tensor_hooks.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

void check_hooks(const Tape& tape, const TapeOp& op) {
  if (tape.state(op.state).foreign_hooks) throw CannotConvert("the program's own saved-tensor hooks may change what the backward pass of " + op.op.schema().name() + " sees.");
}

namespace {

// A Function that writes to a view (mark_dirty) hangs in the graph of the view's base, within the node for that.
bool wraps_function(torch::autograd::Node& node) {
  if (kind_of(node) != NodeKind::kCopySlices) return false;
  const auto& inner = static_cast<torch::autograd::CopySlices&>(node).fn;
  return inner != nullptr && kind_of(*inner) == NodeKind::kOther;
}

// Hooks that the old graph carries would be lost with it.
void check_old_graph(const Tape& tape, const Plan& plan, Graphs graphs) {
  std::vector<torch::autograd::Node*> stack;
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() || (!plan.descends[v] && graphs == Graphs::kWhole)) continue;
    const at::Tensor t = value.lock();
    if (!t.defined()) continue;
    if (tape.find(t.unsafeGetTensorImpl()) == v && !value.known_node(node_of(t))) {
      throw CannotConvert("an autograd.Function or a compiled region made a tensor of the step (" + describe(value) + ").");
    }
    add_nodes_behind(t, stack);
  }
  add_bridges(tape, stack);
  walk_graph(std::move(stack), [&](torch::autograd::Node* node) {
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(node) != nullptr || dynamic_cast<RegionNode*>(node) != nullptr) return false;
    if (tape.bridge_of(*node) != nullptr) return true;  // it stays, with its hooks
    if (wraps_function(*node)) throw CannotConvert("an autograd.Function has written in place to a view of a tensor of the step.");
    const auto& before = node->pre_hooks();
    const bool hooked = std::any_of(before.begin(), before.end(), [](const auto& hook) { return !is_own(*hook); });
    if (hooked || !node->post_hooks().empty()) throw CannotConvert("a hook hangs on a node of the step's graph (grad_fn.register_hook, grad_fn.register_prehook), which would be another one.");
    check_tensor_hooks(tape, plan, graphs, *node);
    return true;
  });
}

// The gradient that comes out of a Function is one of what it read, which a region has no place for once another operator of its own has written to it: see Note [Bridges].
void check_bridges(const Tape& tape, const Plan& plan, const std::vector<char>& needed) {
  for (const Bridge& bridge : tape.bridges()) {
    for (const Bridge::End& end : bridge.ends) {
      const TapeValue& read = tape.values()[end.value];
      if (bridge.alive.expired() || read.is_capture() || is_as_it_is(plan, end.value)) continue;
      for (size_t i = static_cast<size_t>(read.producer) + 1; i < tape.ops().size(); ++i) {
        const TapeOp& op = tape.ops()[i];
        if (!needed[i] || !op.in_place || op.outputs.empty() || op.outputs[0] == kNoTapeValue) continue;
        const TapeValue& written = tape.values()[op.outputs[0]];
        if (written.group == read.group && written.differentiable() && tape.state(op.state).grad_mode) {
          throw CannotConvert("an autograd.Function has read a tensor of the step (" + describe(read) + ") that was written to in place afterwards.");
        }
      }
    }
  }
}

// Whether the operator joins the region, so that its live result keeps its memory where that is pinned.
bool stays_where_it_is(const Tape& tape, const Plan& plan, const TapeOp& op) {
  if (!reads_split(plan, op)) return false;
  OpCall call = call_on_tape(tape, op, plan.batch, [&](TapeValueId v) { return plan.placements[v]; });
  return decide_on_tape(tape, plan, op, call).way == Way::kJoin && call.real_arguments().empty();
}

// What is made again at the full batch, in memory of its own: what is written to it is written again. It may be a view of a sum over the rows, which has its value then.
bool is_written_again(const Tape& tape, const Plan& plan, const TapeValue& written) {
  const auto of_group = [&](const TapeValue& value) { return value.group == written.group; };
  const auto base = std::find_if(tape.values().begin(), tape.values().end(), of_group);
  const auto is_made_again = [&](TapeValueId v) { return !tape.values()[v].is_capture() && plan.descends[v] && !is_seed(plan, v); };
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    if (of_group(tape.values()[v]) && !is_made_again(v)) return false;
  }
  const TapeValue* first = &written;  // before other writes in place
  while (!first->is_capture() && tape.ops()[first->producer].in_place) first = &tape.values()[tape.ops()[first->producer].refs[0].value];
  const Placement& placement = plan.placements[base - tape.values().begin()];
  return !base->is_view && (placement.is_replicate() || (first->is_view && placement.is_partial()));
}

// Whether an operator before the `end`th may have saved memory of the group in another way than a graph does, which finds no write to it: see Note [Saved-tensor hooks].
bool is_saved_by_hook(const Tape& tape, uint32_t group, size_t end) {
  const auto of_group = [&](TapeValueId v) { return v != kNoTapeValue && tape.values()[v].group == group; };
  return std::any_of(tape.ops().begin(), tape.ops().begin() + static_cast<std::ptrdiff_t>(end), [&](const TapeOp& op) {
    if (!tape.state(op.state).saves_by_hook) return false;
    return (may_save_result(op.op.schema()) && std::any_of(op.outputs.begin(), op.outputs.end(), of_group)) ||
           (may_save_operands(op.op.schema()) && std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return of_group(ref.value); }));
  });
}

// Whether conversion can succeed; throws CannotConvert when not. Reads only.
void check_convertible(const Tape& tape, const Plan& plan, Graphs graphs) {
  if (tape.effects_under_hooks()) {
    throw CannotConvert(kEffectInCheckpoint);
  }
  check_old_graph(tape, plan, graphs);
  const MadeAgain real(tape, plan, graphs);
  const auto needed = needed_ops(tape, plan);
  check_bridges(tape, plan, needed);
  check_hooks_of_gradients(tape, needed);
  if (!tape.bridges().empty()) check_hooks_behind_functions(tape, plan, real.makes(needed));
  const Staying staying(tape, plan);
  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    const TapeOp& op = tape.ops()[i];
    const OpTraits& traits = op_traits(op.op);
    check_hooks(tape, op);
    for (const TapeRef& ref : op.refs) {
      check_memory(tape.values()[ref.value]);
    }
    for (TapeValueId out : op.outputs) {
      if (out == kNoTapeValue || !tape.values()[out].differentiable()) continue;
      if (const at::Tensor t = tape.values()[out].lock(); t.defined() && storage_of(t) == nullptr) throw CannotConvert("a sparse tensor inside the step has a gradient.");
    }
    for (const Seed& seed : plan.seeds) {
      const TapeValue& whole = tape.values()[seed.value];
      if (seed.created || whole.is_capture() || whole.producer <= static_cast<int32_t>(i)) continue;
      for (TapeValueId out : op.outputs) {
        if (out != kNoTapeValue && tape.values()[out].group == whole.group) throw CannotConvert("a tensor that the step read (" + describe(whole) + ") was written to in place after " + op.op.schema().name() + " had made it.");
      }
    }
    for (TapeValueId out : op.outputs) {
      if (out != kNoTapeValue && tape.values()[out].exchanged && !stays_where_it_is(tape, plan, op)) {
        throw CannotConvert("a tensor of the step (" + describe(tape.values()[out]) + ") was written to by a collective operation.");
      }
    }
    if (traits.writes) {
      // Made again, it writes into what was made again before; what is there as the program has it has been written to already.
      const TapeValue* written = op.refs.empty() || op.refs[0].arg != 0 ? nullptr : &tape.values()[op.refs[0].value];
      if (written == nullptr || written->is_capture() || !needed[written->producer] || is_seed(plan, op.refs[0].value)) {
        throw CannotConvert(op.op.schema().name() + " writes in place to a tensor that is not made again.");
      }
      const bool looks = view_instead(op.op).has_value();  // the memory stays as it is
      if (traits.metadata && !looks) throw CannotConvert(op.op.schema().name() + " changes in place how a tensor of the step (" + describe(*written) + ") looks at its memory.");
      if (!looks && staying.keeps_data(written->group) && !stays_where_it_is(tape, plan, op)) {
        throw CannotConvert(op.op.schema().name() + " has written in place to a tensor (" + describe(*written) + ") that NumPy or .data may look at, and would write to it again.");
      }
      if (!looks && !plan.joins[i] && !tape.state(op.state).saves_by_hook && is_saved_by_hook(tape, written->group, i)) throw CannotConvert(kSavedByHookAndWritten);
      const bool by_row = looks || (traits.in_place && plan.joins[i]);
      if (!by_row && !is_written_again(tape, plan, *written)) throw CannotConvert("an operator without a placement rule, " + op.op.schema().name() + ", writes in place to a tensor of the batch.");
    }
    for (const TapeRef& ref : tape.ops()[i].refs) {
      if (is_dropped(op, ref)) continue;
      const TapeValue& read = tape.values()[ref.value];
      if (graphs == Graphs::kUsedUp && !plan.descends[ref.value] && !read.is_capture() && read.differentiable() && drew(tape.ops()[read.producer]) && tape.draws_of(tape.ops()[read.producer]) == nullptr) {
        throw CannotConvert("random draws of " + tape.ops()[read.producer].op.schema().name() + " are made for the whole batch, and its part of the graph is used up.");
      }
      if (is_read_as_it_is(tape, plan, op, ref)) real.check(ref.value, version_to_read(tape, plan, op, ref));
    }
  }
}

// What the engine and hooks have written to in backward, where the tape does not look: a gradient that is accumulated to, a sum that a hook adds to. Its memory stays as it is.
void pin_written_in_backward() {
  Tape& tape = session().tape;
  ska::flat_hash_map<uint32_t, uint32_t> recorded;  // by group
  for (const TapeValue& value : tape.values()) recorded[value.group] = std::max(recorded[value.group], value.version);
  for (const TapeValue& value : tape.values()) {
    const at::Tensor t = tape.on_capture(value.group) ? at::Tensor() : value.lock();  // a view of a capture is made again of its copy
    if (t.defined() && storage_of(t) != nullptr && version_of(t) > recorded[value.group]) tape.pin_storage(storage_of(t));
  }
}

}  // namespace

void check_raw_memory() {
  Session& s = session();
  const bool changed = raw_memory().changed([&](const c10::StorageImpl* storage) {
    return std::any_of(s.tape.values().begin(), s.tape.values().end(), [&](const TapeValue& value) { return value.storage == storage; }) ||
           (s.current && s.current->concerns_storage(storage));
  });
  if (changed) throw CannotConvert(kWrittenUnseen);
}

Plan find_plan(const Tape& tape, const std::function<bool(const Plan&)>& serves, const std::function<void(const Plan&)>& check, int64_t usual_batch,
               Graphs graphs, ska::flat_hash_set<const c10::TensorImpl*> asked_for) {
  follow_successors(nodes_behind(tape));
  pin_written_in_backward();
  // Parameters, constants and data, what is written to them in place, and views of them, are made from nothing that could be split.
  const bool computed = std::any_of(tape.ops().begin(), tape.ops().end(), [&](const TapeOp& op) {
    const auto makes = [&](TapeValueId out) { return out != kNoTapeValue && !tape.values()[out].is_view; };
    return !op.refs.empty() && !op.in_place && std::any_of(op.outputs.begin(), op.outputs.end(), makes);
  });
  std::string reason = "nothing that the step has computed can be split along a dimension of its inputs.";
  if (!computed) reason = session().live_regions().empty() ? "the step has computed nothing yet that could be split: what is there is the model, or the data." : kOneRowDoesNotFit;
  bool first = true;
  const auto feasible = [&](const Plan& plan) {
    try {
      check(plan);
      check_convertible(tape, plan, graphs);
      return true;
    } catch (const CannotConvert& why) {
      session().log(KOILA_LOG_DEBUG, "cannot split " + describe(tape.values()[plan.seeds[0].value]) + " into " + std::to_string(plan.batch) + " rows: " + why.what());
      if (std::exchange(first, false)) reason = why.what();
      return false;
    }
  };
  std::optional<Plan> plan = choose_seeds(tape, {serves, feasible, usual_batch, graphs, std::move(asked_for)});
  if (!plan) throw CannotConvert(reason);
  for (const Seed& seed : plan->seeds) {
    session().log(KOILA_LOG_DEBUG, "splits " + describe(tape.values()[seed.value]) + " along dimension " + std::to_string(seed.placement.dim) + " into " + std::to_string(plan->batch) + " rows" + (seed.created ? ", a constant" : ""));
  }
  return *std::move(plan);
}

}  // namespace koila
