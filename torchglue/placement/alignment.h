// Alignment: where the batch falls when operands are broadcast against each other.
#pragma once

#include <optional>

#include "torchglue/placement/operands.h"

namespace koila {

// An operand whose last `trailing` dimensions are one item to the operator: a matrix, a vector of pivots.
struct Stacked {
  ArgRef ref;
  int64_t trailing = 0;
};

// The operands are broadcast (shapes aligned at the right, as in NumPy), all but their last `trailing` dimensions, which the operator
// treats as one item each. Answers where the batch falls, as a dimension of the broadcast shape counted from the front, and slices every
// Replicate operand that reaches into that dimension with more than one entry.
// nullopt: no operand is Shard, one is Partial, two disagree, or the batch lies in the trailing dimensions.
std::optional<Placement> align(OpCall& call, const ArgRefs& operands, int64_t trailing = 0);
// The same for items of several kinds. The results begin with the stack's dimensions, and the answer is among these.
std::optional<Placement> align_stacks(OpCall& call, const c10::SmallVector<Stacked, 4>& operands);

}  // namespace koila
