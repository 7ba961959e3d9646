#include "torchglue/placement/alignment.h"

#include <algorithm>

namespace koila {

std::optional<Placement> align(OpCall& call, const ArgRefs& operands, int64_t trailing) {
  // Dimensions are counted from the right here: the place that broadcasting preserves.
  int64_t leading = 0;
  std::optional<Placement> batch;
  int64_t from_right = 0;
  for (ArgRef ref : operands) {
    const TensorSpec& t = spec(call, ref);
    leading = std::max(leading, t.dim() - trailing);
    if (t.placement.is_partial()) return std::nullopt;
    if (!t.placement.is_shard()) continue;
    const int64_t here = t.dim() - t.placement.dim;
    if (here <= trailing) return std::nullopt;
    if (batch && (here != from_right || batch->outer != t.placement.outer || batch->inner != t.placement.inner)) return std::nullopt;
    batch = t.placement;
    from_right = here;
  }
  if (!batch) return std::nullopt;
  for (ArgRef ref : operands) {
    const TensorSpec& t = spec(call, ref);
    const int64_t dim = t.dim() - from_right;
    if (dim < 0 || t.sizes[dim] == 1) continue;  // broadcast to every row
    if (!call.require(ref, batch->at(dim))) return std::nullopt;
  }
  return batch->at(leading + trailing - from_right);
}

}  // namespace koila
