// Contraction: products summed over shared labels, as einsum writes them. All of matrix multiplication is this.
#pragma once

#include <c10/util/SmallVector.h>

#include <optional>

#include "torchglue/placement/operands.h"

namespace koila {

// A label for every dimension of an operand: "bij" of "bij,bjk->bik".
using Labels = c10::SmallVector<int, 6>;

struct Factor {
  ArgRef ref;
  Labels labels;
};

Labels labels(const char* text);

// Where the batch falls in the output: Shard at the label's place, or Partial when the label is summed over. Every factor that carries the
// label with more than one entry is sliced; the others must be Replicate. One Partial factor among Replicate ones gives Partial.
// nullopt: factors disagree, or a factor carries the label twice.
std::optional<Placement> contract(OpCall& call, c10::ArrayRef<Factor> factors, const Labels& out);

}  // namespace koila
