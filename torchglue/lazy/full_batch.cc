#include "torchglue/lazy/full_batch.h"

#include <c10/core/AutogradState.h>

#include <cstdint>
#include <memory>

#include "torchglue/base/followed.h"
#include "torchglue/base/tls.h"
#include "torchglue/kept_arguments.h"
#include "torchglue/lazy/writes.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/real_values.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// Marks results that kept the split dimension of an argument: what follows can then be split again. A guess, and only that: whether
// it can be is for the rules to say.
void mark_results(const std::vector<SplitArgument>& split, at::ArrayRef<c10::IValue> results) {
  for_each_tensor(results, [&](const at::Tensor& t, int, int) {
    if (!follows(*t.unsafeGetTensorImpl())) return;
    for (const SplitArgument& a : split) {
      if (!a.placement.is_shard() || a.placement.dim >= t.dim() || t.device() != a.tensor.device()) continue;
      if (t.size(a.placement.dim) != a.placement.extent(a.batch)) continue;
      if (deferred_registry().find(t.unsafeGetTensorImpl()).region != nullptr) return;
      session().marks.add(t, a.placement, a.batch, a.micro_batch);
      return;
    }
  });
}

}  // namespace

void run_at_full_batch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const std::vector<SplitArgument>& split) {
  const OpTraits& traits = op_traits(op);
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  int64_t bytes = 0;
  std::vector<std::shared_ptr<Region>> alive;  // one of which everything is read may end
  for (const SplitArgument& a : split) {
    if (a.region != nullptr) alive.push_back(a.region->shared_from_this());
  }
  const bool deferred = materialise_split(split, /*but_for_the_step_within=*/false);
  for (const SplitArgument& a : split) {
    if (a.region == nullptr) continue;
    bytes += static_cast<int64_t>(a.tensor.nbytes());
    if (grad_mode && a.tensor.requires_grad()) a.region->consume(a.value);
  }
  if (deferred && traits.tensor_result) {
    constexpr size_t kNamesAtMost = 64;
    session().runtime->on_full_batch(op.schema().name().c_str(), bytes);
    if (session().run_whole.size() < kNamesAtMost) session().run_whole.push_back(op.schema().name());
  }
  if (traits.writes) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    const bool with_graph = grad_mode && any_requires_grad(arguments);
    for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
      const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
      if (entry.region == nullptr) return refuse_write_to_a_part(t);  // it may have come out for this call
      const auto region = entry.region->shared_from_this();
      tell_of_write(t);  // it has its value only now
      region->hand_out_group(entry.value, with_graph);
    });
  }
  run_eagerly(op, keys, stack);
  mark_results(split, torch::jit::last(*stack, op.schema().returns().size()));
}

void run_on_metadata(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const RegionWork no_access;
  const NoInterceptGuard no_intercept;
  op.redispatchBoxed(keys & kBelowInterceptor, stack);
}

bool decompose(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const OpTraits& traits) {
  if (traits.writes || traits.random) {
    op.redispatchBoxed(keys & kBelowInterceptor, stack);
    return true;
  }
  const KeptArguments arguments(*stack, op.schema().arguments().size());
  try {
    const RegionWork no_access;  // who takes a pointer here is to have all of its arguments as they are, and makes its results by itself
    op.redispatchBoxed(keys & kBelowInterceptor, stack);
    return true;
  } catch (const c10::Error& error) {
    if (!is_raw_access(error)) throw;
  }
  arguments.put_back(*stack);
  return false;
}

}  // namespace koila
