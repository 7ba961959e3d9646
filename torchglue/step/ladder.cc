#include "torchglue/step/ladder.h"

#include <algorithm>

#include "torchglue/base/process.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/op_traits.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/tape/tape.h"

namespace koila {

bool may(koila_rung rung) { return (process().runtime->settings->ladder & rung) != 0; }

bool worth_another_try(const OutOfMemory& oom, int& tries, bool micro_batch) {
  constexpr int kTriesAtMost = 2;
  if (!may(KOILA_RUNG_RETRY) || tries >= kTriesAtMost) return false;
  ++tries;
  const int64_t budget = process().runtime->budget_bytes(oom.device);
  if (budget > 0 && oom.live + oom.requested > budget) return false;
  const c10::Device device = device_of_number(oom.device);
  if (device.is_cpu()) return true;
  if (micro_batch && budget == 0) return false;
  release_cached_blocks(device);
  const auto available = available_bytes(device);
  return available && *available >= oom.requested;
}

WrittenArguments::WrittenArguments(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const OpTraits& traits = op_traits(op);
  if (!traits.out && !(traits.in_place && traits.pointwise)) return;  // make_as_before() says no, whatever there was
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
    Before& before = before_.emplace_back();
    before.version = version_of(t);
    if (!traits.out || t.layout() != at::kStrided) return;
    before.sizes = t.sizes();
    before.strides = t.strides();
    before.offset = t.storage_offset();
  });
}

bool WrittenArguments::make_as_before(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) const {
  const OpTraits& traits = op_traits(op);
  if (!traits.writes) return true;
  if (!traits.out && !(traits.in_place && traits.pointwise)) return false;
  bool as_before = true;
  size_t i = 0;
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int argument) {
    const Before& before = before_[i++];
    as_before &= version_of(t) == before.version && t.layout() == at::kStrided;
    if (!as_before || !traits.out) return;
    for_each_tensor(arguments, [&](const at::Tensor& other, int from, int) { as_before &= from == argument || storage_of(other) != storage_of(t); });
    if (as_before && t.sizes() != at::IntArrayRef(before.sizes)) t.unsafeGetTensorImpl()->set_sizes_and_strides(before.sizes, before.strides, before.offset);
  });
  return as_before;
}

}  // namespace koila
