// The fallback on the interceptor's dispatch key: every operator call of a thread of the program comes here first.
#include "torchglue/interceptor.h"

#include <torch/library.h>

#include <optional>
#include <vector>

#include "torchglue/base/followed.h"
#include "torchglue/base/seen_in_step.h"
#include "torchglue/base/tls.h"
#include "torchglue/dispatch.h"
#include "torchglue/in_checkpoint.h"
#include "torchglue/lazy/writes.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/memory/origin.h"
#include "torchglue/oom/oom_watch.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/stages/running_statistics.h"
#include "torchglue/statistics/running_arguments.h"
#include "torchglue/step/session.h"
#include "torchglue/step/step_owner.h"
#include "torchglue/tape/written_since.h"
#include "torchglue/updates/late_updates.h"

namespace koila {

namespace {

// A tensor whose sizes, or whole meaning, are Python's: also where PyTorch has left Python out for the moment, as it does while it makes one.
bool any_of_python(at::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& v : arguments) {
    if (!v.isTensor() || !v.toTensor().defined()) continue;
    const c10::TensorImpl& impl = *v.toTensor().unsafeGetTensorImpl();
    if (impl.key_set().has(c10::DispatchKey::Python) || impl.has_symbolic_sizes_strides()) return true;
  }
  return false;
}

// Why koila leaves the call alone; null: it does not.
const char* reason_to_stay_out(c10::DispatchKeySet keys, at::ArrayRef<c10::IValue> arguments) {
  if (keys.has_any(kStayOut)) {
    return keys.has_any(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}))
               ? "it happened below a Python dispatch mode or in a tensor subclass (__torch_dispatch__), which give operators another meaning."
               : "it happened in a functorch transform, or while operators are traced, which gives them another meaning.";
  }
  if (session().capturing()) return "it happened while a CUDA graph is captured.";
  return any_of_python(arguments) ? "it happened in a tensor subclass (__torch_dispatch__), which gives operators another meaning." : nullptr;
}

// What the call writes to, and may count no version up for: the running statistics of a norm, what a fused optimizer updates, what has a version of its own (`.data`).
std::vector<at::Tensor> written_silently(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  if (op_traits(op).silent_effect) return running_statistics(op.schema(), arguments);
  std::vector<at::Tensor> written;
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) { written.push_back(t); });
  return written;
}

void follow(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Session& s = session();
  if (raw_memory().is_fresh()) raw_memory().look();
  std::optional<SilentWrite> silent;
  if (raw_memory().any()) silent.emplace(written_silently(op, torch::jit::last(*stack, op.schema().arguments().size())));
  if (keys.has_any(c10::autocast_dispatch_keyset)) SeenInStep::note(seen_in_step.autocast);
  std::optional<InCheckpoint> in_checkpoint;
  if (InCheckpoint::begins()) in_checkpoint.emplace();
  if (late_updates().any() && late_updates().take(op, keys, stack)) return;
  std::optional<ToldOfWrites> told;
  if (lazy_possible()) {
    if (op_traits(op).writes) told.emplace();
    if (dispatch_lazily(op, keys, stack)) return;
  }
  if (s.engine_depth > 0 && !s.replays()) {
    run_plainly(op, keys, stack);
    return;
  }
  run_eagerly(op, keys, stack);
}

}  // namespace

bool is_ordinary(c10::DispatchKeySet keys, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) {
  const Session& s = session();
  if (!s.rescue || s.converting || s.engine_depth > 0 || lazy_possible() || s.meets_cuda() || s.capturing() || s.runtime->settings->stacks != 0 || late_updates().any()) return false;
  if (!follows_this_thread() || keys.has_any(kStayOut) || NoSavedTensorHooksGuard::active() || raw_memory().is_fresh() || raw_memory().any() || written_since().any()) return false;
  if (traits.random || traits.opaque || traits.silent_effect || traits.collective || traits.forward_mode || traits.foreach) return false;
  if (any_of_python(arguments) || is_elsewhere(keys, arguments)) return false;
  if (keys.has_any(c10::autocast_dispatch_keyset)) SeenInStep::note(seen_in_step.autocast);
  return true;
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Session& s = session();
  if (s.meets_cuda()) attach_cuda_allocator();
  if (s.rescue && !is_followed(op, *stack)) return op.redispatchBoxed(keys & kBelowInterceptor, stack);
  const OpInProgress in_progress(op);
  if (!s.rescue) return run_plainly(op, keys, stack);
  const OutOfMemoryWatch watch(op.schema().name());
  const at::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const char* alone = reason_to_stay_out(keys, arguments);
  try {
    if (alone != nullptr) {
      late_updates().settle_all();
      run_plainly(op, keys, stack);
    } else if (is_elsewhere(keys, arguments)) {
      alone = "it happened in an operator on a nested tensor, or on a device that koila does not work on.";
      late_updates().settle_all();
      before_call_elsewhere(op, arguments);
      run_plainly(op, keys, stack);
    } else {
      follow(op, keys, stack);
    }
  } catch (const std::exception& error) {
    watch.leaves(error, alone != nullptr ? alone : kNotMadeAgain);
    throw;
  }
}

}  // namespace koila

TORCH_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&koila::intercept>()); }
