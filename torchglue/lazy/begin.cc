#include "torchglue/lazy/begin.h"

#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// The region may end with the session's hold on it.
void leave_current() {
  Session& s = session();
  if (s.current) s.current->materialise(s.current->looked_at());
  s.current.reset();
}

// Makes the region of a learned seed the current one. The same call again, for another batch: a new step has begun, whether or not there
// was a backward pass between. False when the step is to run whole.
bool begin_with(const LearnedSeed& seed, at::Device device) {
  Session& s = session();
  // What an evaluation has left behind, all of it read, is no part of this step.
  if (s.current && s.current->holds_first_frame() && !s.current->differentiable() && !s.current->has_deferred()) leave_current();
  const bool joins = s.current && s.current->open() && s.current->batch() == seed.batch() && s.current->begin_with(seed.key, seed.times);
  const bool goes_on = s.sizes.goes_on(*seed.policy, seed.key, seed.times, c10::AutogradState::get_tls_state().get_grad_mode());
  if (joins) return true;
  if (!goes_on) {
    s.sizes.begin(seed.policy, device);
    s.sizes.goes_on(*seed.policy, seed.key, seed.times, /*with_gradients=*/false);
  }
  if (s.sizes.runs_whole(*seed.policy)) return false;
  leave_current();
  s.region_for(seed.batch(), seed.policy->rows(), device)->begin_with(seed.key, seed.times);
  return true;
}

}  // namespace

at::Device device_asked_for(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isDevice() || op.schema().arguments()[i].name() != "device") continue;
    const at::Device device = arguments[i].toDevice();
    return device.is_cpu() || device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();  // "cuda": the current one
  }
  for (const c10::IValue& v : arguments) {
    if (v.isTensor() && v.toTensor().defined()) return v.toTensor().device();
  }
  return at::kCPU;
}

void mark_learned_seeds(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, int64_t named) {
  Session& s = session();
  const auto* seeds = s.signatures.find(op, arguments);
  if (seeds == nullptr) return;
  for (const LearnedSeed& seed : *seeds) {
    if ((named > 0 && seed.batch() != named) || s.named.excludes(seed.batch())) continue;
    if (seed.argument < 0) begin_with(seed, device_asked_for(op, arguments));
    for_each_tensor(arguments, [&](const at::Tensor& t, int arg, int element) {
      if (arg != seed.argument || element != seed.element) return;
      if (s.marks.find(t.unsafeGetTensorImpl()) != nullptr || deferred_registry().find(t.unsafeGetTensorImpl()).region != nullptr) return;
      if (begin_with(seed, t.device())) s.marks.add(t, seed.placement, seed.batch(), seed.policy->rows());
    });
  }
}

}  // namespace koila
