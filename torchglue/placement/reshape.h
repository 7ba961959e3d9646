// Reshape: follows the batch through a change of shape that keeps the row-major order of the entries.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "torchglue/placement/placement.h"

namespace koila {

// Note [Row-major factors]
// Row-major, a tensor that is Shard(d, outer, inner) is [before, B, after] with before = prod(sizes[:d]) * outer and
// after = inner * prod(sizes[d+1:]). A reshape keeps that order, so micro-batches stay micro-batches exactly when one output dimension
// holds all of the factor B: prod(out[:k]) divides `before`, prod(out[k+1:]) divides `after`, and what is left of both is merged into
// out[k] around B. A literal that happens to equal B means nothing by itself.

// The placement of a tensor of these sizes after the reshape to `out` (no -1 in it). nullopt: the batch is cut in two, or there are no entries.
std::optional<Placement> reshape_placement(c10::IntArrayRef sizes, const Placement& shard, int64_t batch, c10::IntArrayRef out);

// `size` with its -1 replaced by what is left of `numel`; nullopt when that does not work out.
std::optional<std::vector<int64_t>> resolve_size(c10::IntArrayRef size, int64_t numel);

}  // namespace koila
