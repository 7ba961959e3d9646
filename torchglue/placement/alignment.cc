#include "torchglue/placement/alignment.h"

#include <algorithm>

namespace koila {

std::optional<Placement> align_stacks(OpCall& call, const c10::SmallVector<Stacked, 4>& operands) {
  // Dimensions of the stack are counted from the right here: the place that broadcasting preserves.
  int64_t leading = 0;
  std::optional<Placement> batch;
  int64_t from_right = 0;
  for (const auto& [ref, trailing] : operands) {
    const TensorSpec& t = spec(call, ref);
    leading = std::max(leading, t.dim() - trailing);
    if (t.placement.is_partial()) return std::nullopt;
    if (!t.placement.is_shard()) continue;
    const int64_t here = t.dim() - trailing - t.placement.dim;
    if (here <= 0) return std::nullopt;
    if (batch && (here != from_right || !batch->splits_like(t.placement))) return std::nullopt;
    batch = t.placement;
    from_right = here;
  }
  if (!batch) return std::nullopt;
  for (const auto& [ref, trailing] : operands) {
    const TensorSpec& t = spec(call, ref);
    const int64_t dim = t.dim() - trailing - from_right;
    if (dim < 0 || t.sizes[dim] == 1) continue;  // broadcast to every row
    if (!call.require(ref, batch->at(dim))) return std::nullopt;
  }
  return batch->at(leading - from_right);
}

std::optional<Placement> align(OpCall& call, const ArgRefs& operands, int64_t trailing) {
  c10::SmallVector<Stacked, 4> stacked;
  for (ArgRef ref : operands) stacked.push_back({ref, trailing});
  return align_stacks(call, stacked);
}

}  // namespace koila
