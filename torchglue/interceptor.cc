#include "torchglue/interceptor.h"

#include <torch/library.h>

#include <optional>

#include "torchglue/dispatch.h"
#include "torchglue/facts/facts.h"
#include "torchglue/in_checkpoint.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/session.h"
#include "torchglue/stages/running_statistics.h"
#include "torchglue/tls.h"

namespace koila {

namespace {

// A tensor whose sizes, or whole meaning, are Python's: also where PyTorch has left Python out for the moment, as it does while it makes one.
bool any_of_python(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (const c10::IValue& v : torch::jit::last(stack, op.schema().arguments().size())) {
    if (!v.isTensor() || !v.toTensor().defined()) continue;
    const c10::TensorImpl& impl = *v.toTensor().unsafeGetTensorImpl();
    if (impl.key_set().has(c10::DispatchKey::Python) || impl.has_symbolic_sizes_strides()) return true;
  }
  return false;
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Session& s = session();
  const OpInProgress in_progress(op);
  if (s.meets_cuda()) attach_cuda_allocator();
  if (!s.rescue || keys.has_any(kStayOut) || s.capturing() || any_of_python(op, *stack)) {
    run_plainly(op, keys, stack);
    return;
  }
  if (raw_memory().is_fresh()) raw_memory().look();
  std::optional<SilentWrite> silent;
  if (raw_memory().any() && op_traits(op).silent_effect) silent.emplace(running_statistics(op.schema(), torch::jit::last(*stack, op.schema().arguments().size())));
  if (keys.has_any(c10::autocast_dispatch_keyset)) SeenInStep::note(seen_in_step.autocast);
  std::optional<InCheckpoint> in_checkpoint;
  if (InCheckpoint::begins()) in_checkpoint.emplace();
  if (lazy_possible() && dispatch_lazily(op, keys, stack)) return;
  if (s.engine_depth > 0 && !s.replays()) {
    run_plainly(op, keys, stack);
    return;
  }
  run_eagerly(op, keys, stack);
}

}  // namespace

void intercept_this_thread() { c10::impl::tls_set_dispatch_key_included(kInterceptorKey, true); }

}  // namespace koila

TORCH_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&koila::intercept>()); }
