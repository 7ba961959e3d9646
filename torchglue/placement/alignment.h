// Alignment: where the batch falls when operands are broadcast against each other.
#pragma once

#include <optional>

#include "torchglue/placement/operands.h"

namespace koila {

// The operands are broadcast (shapes aligned at the right, as in NumPy), all but their last `trailing` dimensions, which the operator
// treats as one item each. Answers where the batch falls, as a dimension of the broadcast shape counted from the front, and slices every
// Replicate operand that reaches into that dimension with more than one entry.
// nullopt: no operand is Shard, one is Partial, two disagree, or the batch lies in the trailing dimensions.
std::optional<Placement> align(OpCall& call, const ArgRefs& operands, int64_t trailing = 0);

}  // namespace koila
