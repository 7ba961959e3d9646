// Nodes of the old graph that stay, and what they hang on once a part of it is a region's.
#pragma once

#include <ATen/core/Tensor.h>

#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Whether a conversion gives that end of a bridge another node: what the old one hangs on is not needed any more.
bool is_rewired(const Plan& plan, const Bridge::End& end);

// The tensor stands for the value from now on: the bridges that lead to the value now lead to the node that the tensor has.
void rewire(const Tape& tape, TapeValueId value, const at::Tensor& tensor);

}  // namespace koila
