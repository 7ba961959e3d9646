#include "torchglue/rescue/rescued_call.h"

#include <c10/core/AutogradState.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "torchglue/dispatch.h"
#include "torchglue/in_checkpoint.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/plan/seeds.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/rescue/convert.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/step/ladder.h"
#include "torchglue/step/session.h"
#include "torchglue/updates/late_updates.h"

namespace koila {

// Micro-batch 0 of a region that is under way may stand in the way of an operator outside it.
bool shrink_regions() {
  bool shrunk = false;
  for (const auto& region : session().live_regions()) {
    if (boundaries().evict(region->device())) return true;
    shrunk |= region->holds_first_frame() && region->shrink();
  }
  return shrunk;
}

namespace {

// Note [A rescue within a rescue]
// What a rescue runs again may run out in turn, and be rescued: the operators inside a composite one, say. The same operator within its
// own rescue is not: what could be split has been.
thread_local std::vector<const c10::FunctionSchema*> stack_of_rescues;

class InRescue {
 public:
  explicit InRescue(const c10::OperatorHandle& op) { stack_of_rescues.push_back(&op.schema()); }
  ~InRescue() { stack_of_rescues.pop_back(); }
  InRescue(const InRescue&) = delete;
  InRescue& operator=(const InRescue&) = delete;
};

void check_call_in_flight(const Plan& plan) {
  const Tape& tape = session().tape;
  if (c10::AutogradState::get_tls_state().get_grad_mode() || tape.pending() == nullptr) return;
  for (const TapeRef& ref : tape.pending()->refs) {
    if (!plan.placements[ref.value].is_replicate() && tape.values()[ref.value].differentiable()) {
      throw CannotConvert("it happened under no_grad on a tensor that requires grad, as inside an autograd.Function or a checkpoint.");
    }
  }
}

// What stays whole now would run out in the backward pass, half way: another batch that the same network has seen before.
void split_the_rest(const OutOfMemory& oom) {
  Session& s = session();
  if (s.tape.empty()) return;
  const auto check = [&](const Plan& plan) {
    check_call_in_flight(plan);
    if (plan.bytes < oom.requested || !covers_most(s.tape, plan)) throw CannotConvert("nothing that the step has computed can be split along a dimension of its inputs.");
  };
  try {
    convert(s.tape, find_plan(s.tape, nullptr, check, 0));
  } catch (const CannotConvert&) {  // then it stays whole
  }
}

// More than the device has: what is let go helps nothing. A program may ask for as much to find out what there is.
bool is_out_of_reach(const OutOfMemory& oom) {
  const int64_t budget = process().runtime->budget_bytes(oom.device);
  const int64_t most = budget > 0 ? budget : device_of_number(oom.device).is_cpu() ? static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) : 0;
  return most > 0 && oom.requested > most;
}

// Makes a region of the step so far, and another of the rest where the plan for the call covers little. Throws CannotConvert, with nothing changed, or out of memory.
int64_t split_step(const OutOfMemory& oom) {
  Session& s = session();
  if (!may(KOILA_RUNG_SPLIT)) throw CannotConvert(kMayNotSplit);
  check_raw_memory();
  s.tape.let_go_of_leaves();
  s.tape.widen_bridges();
  const Plan plan = find_plan(s.tape, nullptr, check_call_in_flight, s.batch_in_use());
  if (plan.pending == Plan::Pending::kNotReached && is_out_of_reach(oom)) throw CannotConvert("the call asks for more memory than the device has, and is no part of what can be split.");
  const bool most = covers_most(s.tape, plan);
  report_rescue(oom, convert(s.tape, plan), plan.batch);
  if (!most) split_the_rest(oom);
  return plan.batch;
}

// Whether nothing is lost if the call has written to its arguments before it failed: they are computed anew.
bool may_repeat(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const OpTraits& traits = op_traits(op);
  if (!traits.writes) return true;
  bool anew = true;
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
    const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
    anew &= entry.region != nullptr && !entry.region->materialised(entry.value);
  });
  return anew;
}

constexpr const char* kStateDoesNotFit = "The optimizer state does not fit.";  // the runtime adds by how much (runtime/state_lacks.h)

// What an optimizer makes its state with in its first step.
bool makes_state(const std::string& op) {
  constexpr const char* kMakers[] = {"aten::zeros_like", "aten::zeros", "aten::empty_like", "aten::empty", "aten::full_like", "aten::full", "aten::clone"};
  return std::find(std::begin(kMakers), std::end(kMakers), op) != std::end(kMakers);
}

// The reason, with the state that the program's error leaves.
std::string describe_refusal(const c10::OperatorHandle& op, const std::string& reason) {
  std::string text = reason;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : " ") + more; };
  if (op_traits(op).writes) add(op.schema().name() + " writes to its arguments, and may have done part of it.");
  const bool in_optimizer = origin_now(false).when == KOILA_IN_OPTIMIZER;
  if (const size_t updated = session().updated.size(); updated > 0 && !c10::AutogradState::get_tls_state().get_grad_mode()) {
    add("Since the last backward pass " + std::to_string(updated) + (updated == 1 ? " parameter has" : " parameters have") + " been updated" +
        (in_optimizer ? ": an optimizer's step is half done." : "."));
  }
  if (in_optimizer && !op_traits(op).writes && makes_state(op.schema().name())) add(kStateDoesNotFit);
  return text;
}

// Whether the call belongs to a training step: a graph is under way, or a backward pass has been and an optimizer may be at work. A tensor that somebody
// makes before is none of koila's to keep elsewhere.
bool is_in_step(at::ArrayRef<c10::IValue> arguments) {
  Session& s = session();
  if (!c10::AutogradState::get_tls_state().get_grad_mode()) return s.had_backward;
  const bool graph = !s.live_regions().empty() || any_requires_grad(arguments);
  const auto& values = s.tape.values();
  return graph || std::any_of(values.begin(), values.end(), [](const TapeValue& v) { return !v.is_capture() && v.differentiable() && !v.weak.expired(); });
}

// The call again: split, or whole where there is more room now. False when it runs out.
bool make_again(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const KeptArguments& arguments, std::optional<RandomState>& before,
                PackOnce& packs) {
  if (before) before->restore();
  arguments.put_back(*stack);
  packs.begin_again();
  std::optional<InCheckpoint> in_checkpoint;
  if (InCheckpoint::begins()) in_checkpoint.emplace();
  try {
    if (!dispatch_lazily(op, keys, stack)) call_kernel([&] { packs.run([&] { run_plainly(op, keys, stack); }); });
    return true;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    return false;
  }
}

}  // namespace

bool in_rescue() { return !stack_of_rescues.empty(); }

void rescue_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const KeptArguments& arguments, const SavedStatistics* statistics,
                 std::optional<RandomState>& before, PackOnce& packs, std::exception_ptr ran_out) {
  Session& s = session();
  const OutOfMemory oom = describe_out_of_memory(op.schema().name());
  const bool in_step = is_in_step(arguments.values());
  std::string reason;
  int64_t batch = 0;
  if (std::find(stack_of_rescues.begin(), stack_of_rescues.end(), &op.schema()) != stack_of_rescues.end()) {
    s.tape.discard();
    std::rethrow_exception(ran_out);
  }
  const InRescue within(op);
  if (!packs.may_run_again()) {
    s.tape.discard();
    report_refusal(oom, "a saved-tensor hook of the program's own ran out, and may have done part of its work.", 0);
    std::rethrow_exception(ran_out);
  }
  arguments.put_back(*stack);
  if (late_updates().begin(op, keys, stack, oom)) return;
  try {
    if (statistics != nullptr && !statistics->restore()) throw CannotConvert(op.schema().name() + " may have updated running statistics before it ran out.");
    batch = split_step(oom);
  } catch (const CannotConvert& why) {
    reason = why.what();
  } catch (const std::exception& error) {
    s.tape.discard();
    if (!is_out_of_memory(error)) throw;
    s.log(KOILA_LOG_DEBUG, std::string("the conversion ran out: ") + error.what());
    report_refusal(oom, reason_of(error), batch);
    std::rethrow_exception(ran_out);
  }
  // What has nothing to do with the call, another network on another batch, may still be whole. A conversion that runs out on its way has given up memory that it could
  // not fill again: then nothing goes on.
  const auto split_more = [&] {
    try {
      if (s.tape.empty()) return false;
      split_step(oom);
      return true;
    } catch (const CannotConvert&) {
      s.tape.cut();
      return false;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      report_refusal(oom, reason_of(error), batch);
      std::rethrow_exception(ran_out);
    }
  };
  // Each time another region has halved its micro-batch; a call that makes regions of
  // its own on every try would never end.
  constexpr int kTriesAtMost = 24;
  for (int tries = 0; tries < kTriesAtMost && packs.may_run_again() && may_repeat(op, arguments.values()) && (reason.empty() || split_more() || shrink_regions()); ++tries) {
    reason = "it does not fit beside one row of the batch.";
    if (make_again(op, keys, stack, arguments, before, packs)) return;
    if (statistics != nullptr) statistics->restore();
  }
  s.tape.discard();
  if (in_step && packs.may_run_again() && may_repeat(op, arguments.values()) && s.offload.begin(oom.device, oom.op)) {
    if (make_again(op, keys, stack, arguments, before, packs)) {
      s.offload.came_through(oom);
      return;
    }
  }
  report_refusal(oom, describe_refusal(op, reason), batch);
  std::rethrow_exception(ran_out);
}

}  // namespace koila
