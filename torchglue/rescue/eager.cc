#include "torchglue/rescue/eager.h"

#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "torchglue/base/inference_writes.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/collectives.h"
#include "torchglue/facts/facts.h"
#include "torchglue/kept_arguments.h"
#include "torchglue/memory/origin.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/own_functions.h"
#include "torchglue/pack_once.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/random_scope.h"
#include "torchglue/region/real_values.h"
#include "torchglue/rescue/convert.h"
#include "torchglue/updates/late_updates.h"
#include "torchglue/updates/note_updates.h"
#include "torchglue/step/ladder.h"
#include "torchglue/rescue/rescued_call.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/step/session.h"
#include "torchglue/step/spare.h"
#include "torchglue/tape/written_since.h"
#include "torchglue/stages/running_statistics.h"

namespace koila {

namespace {

// Rung 0.
bool retry(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const KeptArguments& arguments,
           const std::optional<WrittenArguments>& written, const std::optional<SavedStatistics>& statistics, std::optional<RandomState>& before,
           PackOnce& packs) {
  for (int tries = 0; packs.may_run_again();) {
    const OutOfMemory oom = describe_out_of_memory(op.schema().name());
    const bool room = may(KOILA_RUNG_RETRY) && release_unreachable_regions();
    if ((!room && !worth_another_try(oom, tries, /*micro_batch=*/false)) || (written && !written->make_as_before(op, arguments.values())) || (statistics && !statistics->restore())) return false;
    if (before) before->restore();
    arguments.put_back(*stack);
    try {
      call_kernel([&] { packs.run([&] { run_plainly(op, keys, stack); }); });
      report_rescue(oom, KOILA_RUNG_RETRY);
      return true;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
    }
  }
  return false;
}

// Of the generator that a call with such arguments draws from, where that costs little: what is drawn again must be drawn the same. See also
// Note [A step within a backward pass].
std::optional<RandomState> random_state_of(at::ArrayRef<c10::IValue> arguments) {
  std::optional<at::Device> device;
  for (const c10::IValue& v : arguments) {
    if (v.isGenerator() && v.toGenerator().defined()) return v.toGenerator().device().is_cpu() ? std::make_optional<RandomState>(v.toGenerator()) : std::nullopt;
    if (v.isDevice()) device = v.toDevice();
  }
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    if (!device) device = t.device();
  });
  if (!device) device = at::kCPU;
  if (!device->is_cpu() && (!session().draws_whole() || !at::globalContext().hasCUDA())) return std::nullopt;
  return std::make_optional<RandomState>(*device);
}

// What the failed call did to the generator and to running statistics: undone for a rescue, and put back where there is none.
class LeftByFailure {
 public:
  LeftByFailure(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, const std::optional<RandomState>& before, const std::optional<SavedStatistics>& statistics) {
    if (before) random_.emplace(before->generator());
    if (statistics) statistics_.emplace(op.schema(), arguments);
  }
  void put_back() {
    if (random_) random_->restore();
    if (statistics_) statistics_->restore();
  }

 private:
  std::optional<RandomState> random_;
  std::optional<SavedStatistics> statistics_;
};

// Note [Weights that are put together]
// cuDNN wants the weights of a recurrent layer in one block of memory. flatten_parameters() makes such a block and has the weights look at it, each time that it is called: with the same values, and no
// version counter tells. Who has read a weight before goes on reading it, as a graph does that has saved it.
class GivenMemory {
 public:
  GivenMemory(const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) {
    if (!traits.gives_memory) return;
    for_each_tensor(arguments, [&](const at::Tensor& t, int, int) { before_.emplace_back(t, memory_of(t)); });
  }
  void tell() const {
    for (const auto& [t, memory] : before_) {
      session().tape.given_memory(t);
      for (const auto& region : session().live_regions()) region->given_memory(t, memory);
    }
  }

 private:
  std::vector<std::pair<at::Tensor, const void*>> before_;
};

}  // namespace

void run_plainly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (DeferredRegistry::any() || late_updates().any()) make_real(torch::jit::last(*stack, op.schema().arguments().size()));
  const RegionWork kernel(/*at_work=*/false);
  const NoInterceptGuard no_intercept;
  const WrittenSince::Call call(op, *stack);
  if (!session().regions.empty() && op_traits(op).writes) {
    for_each_written(op.schema(), torch::jit::last(*stack, op.schema().arguments().size()), [](const at::Tensor& t, int) { boundaries().keep_value(storage_of(t)); });
  }
  if (!op_traits(op).writes || !c10::InferenceMode::is_enabled()) return op.redispatchBoxed(keys & kBelowInterceptor, stack);
  std::vector<at::Tensor> written;
  for_each_written(op.schema(), torch::jit::last(*stack, op.schema().arguments().size()), [&](const at::Tensor& t, int) { written.push_back(t); });
  op.redispatchBoxed(keys & kBelowInterceptor, stack);
  for (const at::Tensor& t : written) inference_writes().count(t);
}

// Note [An operator that is made again]
// The memory of what a conversion makes again is given up before. So an operator that runs out within it cannot be the end: regions let go of what they hold, and then it is
// served from outside. Where neither helps the step is refused, and what has lost its value says so when it is read. A region that the operator begins within itself is a new
// one each time, with rows to let go of each time: so the tries are counted.
constexpr int kTriesAtMost = 24;

void call_again(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  Session& s = session();
  const KeptArguments arguments(stack, stack.size());
  const WrittenArguments written(op, arguments.values());
  std::optional<RandomState> before;
  if (op_traits(op).random) before = random_state_of(arguments.values());
  bool served = false;
  for (int tries = 0;; ++tries) {
    std::exception_ptr ran_out;
    try {
      op.callBoxed(stack);
      return;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      ran_out = std::current_exception();
    }
    if (!written.make_as_before(op, arguments.values()) || (op_traits(op).random && !before)) std::rethrow_exception(ran_out);
    const OutOfMemory oom = describe_out_of_memory(op.schema().name());
    if (tries >= kTriesAtMost || !shrink_regions()) {
      if (served || !s.offload.begin(oom.device, oom.op)) std::rethrow_exception(ran_out);
      served = true;
    }
    if (before) before->restore();
    arguments.put_back(stack);
  }
}

// The call has come through, at its first try or at another.
void finish(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results, const std::optional<RandomState>& before = std::nullopt) {
  if (traits.writes && !c10::AutogradState::get_tls_state().get_grad_mode()) note_updates(op, traits, arguments);
  if (traits.foreach && traits.tensor_result) facts().on_foreach(results);
  session().tape.commit(arguments, results, before ? &*before : nullptr);
}

// What a call that ran out is made again with.
struct Before {
  std::optional<RandomState> random;
  std::optional<SavedStatistics> statistics;
  std::optional<WrittenArguments> written;

  // What it drew before it failed would be drawn twice.
  bool may_retry(const OpTraits& traits) const { return (!traits.writes || written) && (!traits.random || random); }
  // The call has come through. Of an opaque operator it shows only now whether it draws.
  void settle_draws(const c10::OperatorHandle& op) {
    if (!random || !op_traits(op).opaque) return;
    if (random->has_moved()) return note_draws(op);
    random.reset();
  }
};

// The call ran out: its results are on the stack afterwards. Throws where nothing helps.
void recover(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const KeptArguments& arguments, Before& before, PackOnce& packs,
             std::exception_ptr ran_out) {
  const OpTraits& traits = op_traits(op);
  LeftByFailure left(op, arguments.values(), before.random, before.statistics);
  if (before.may_retry(traits) && retry(op, keys, stack, arguments, before.written, before.statistics, before.random, packs)) {
    before.settle_draws(op);
    return finish(op, traits, arguments.values(), torch::jit::last(*stack, stack->size() - arguments.bottom()), before.random);
  }
  try {
    rescue_call(op, keys, stack, arguments, before.statistics ? &*before.statistics : nullptr, before.random, packs, std::move(ran_out));
  } catch (...) {
    left.put_back();
    throw;
  }
  session().tape.discard();
}

void run_eagerly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Session& s = session();
  const OpTraits& traits = op_traits(op);
  if (traits.collective) return run_collective(op, keys, stack);
  if (s.converting) return run_plainly(op, keys, stack);
  meet_functions();
  const KeptArguments arguments(*stack, traits.kinds.size());
  make_real(arguments.values());  // the tape is not to take a deferred tensor for one from outside
  // Tangents are no part of what a region knows of a tensor.
  if (traits.forward_mode) s.stay_out("koila stays out from here on: the program uses forward-mode differentiation.");
  s.tape.begin(op, arguments.values());
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  if (grad_mode) s.offload.on_gradients();
  Before before;
  if (traits.random || traits.opaque) before.random = random_state_of(arguments.values());
  if (traits.silent_effect) before.statistics.emplace(op.schema(), arguments.values());
  if (traits.writes && !traits.foreach) before.written.emplace(op, arguments.values());
  const GivenMemory given(traits, arguments.values());
  PackOnce packs;
  std::exception_ptr ran_out;
  try {
    const Offload::MustNotFail must_not(traits.writes && (s.had_backward || grad_mode));
    call_kernel([&] { packs.run([&] { run_plainly(op, keys, stack); }); });
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) {
      s.tape.discard();
      throw;
    }
    ran_out = std::current_exception();
  }
  if (ran_out) {
    recover(op, keys, stack, arguments, before, packs, std::move(ran_out));
    return given.tell();
  }
  given.tell();
  before.settle_draws(op);
  finish(op, traits, arguments.values(), torch::jit::last(*stack, stack->size() - arguments.bottom()), before.random);
}

OrdinaryCall::OrdinaryCall(const c10::OperatorHandle& op, const OpTraits& traits, c10::DispatchKeySet keys, at::ArrayRef<c10::IValue> arguments)
    : op_(op), traits_(traits), keys_(keys), arguments_(arguments), progress_(op), watch_(op.schema().name()) {
  Session& s = session();
  meet_functions();
  s.tape.begin(op, arguments);
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  if (grad_mode) s.offload.on_gradients();
  if (traits_.writes) written_.emplace(op, arguments);
  must_not_fail_ = traits_.writes && (s.had_backward || grad_mode);
}

void OrdinaryCall::came_through(at::ArrayRef<c10::IValue> results) const {
  if (traits_.writes && c10::InferenceMode::is_enabled()) for_each_written(op_.schema(), arguments_, [](const at::Tensor& t, int) { inference_writes().count(t); });
  finish(op_, traits_, arguments_, results);
}

torch::jit::Stack OrdinaryCall::make_up_for(const std::exception& error) {
  try {
    if (!is_out_of_memory(error)) {
      session().tape.discard();
      throw;
    }
    std::exception_ptr ran_out = std::current_exception();
    torch::jit::Stack stack(arguments_.begin(), arguments_.end());
    const KeptArguments arguments(stack, stack.size());
    Before before;
    before.written = std::move(written_);
    PackOnce packs;
    recover(op_, keys_, &stack, arguments, before, packs, std::move(ran_out));
    return stack;
  } catch (const std::exception& left) {
    watch_.leaves(left, kNotMadeAgain);
    throw;
  }
}

}  // namespace koila
