// Nodes of the old graph that stay, and what they hang on once a part of it is a region's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

#include "torchglue/plan/on_tape.h"
#include "torchglue/tape/tape.h"

namespace koila {

// The edge to the node that the tensor has. If that is a region's, the region is told that a plain node hangs on it.
torch::autograd::Edge edge_from_outside(const at::Tensor& tensor);

// The tensor stands for the value from now on: the bridges that lead to the value now lead to the node that the tensor has.
void rewire(const Tape& tape, TapeValueId value, const at::Tensor& tensor);

}  // namespace koila
