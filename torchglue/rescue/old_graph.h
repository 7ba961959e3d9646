// The graph that a backward pass at the full batch has run out in, which micro-batches take the place of.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Which value on the tape each root of the pass is. Undefined where it is none.
std::vector<at::Tensor> root_tensors(const Tape& tape, const Plan& plan, const torch::autograd::edge_list& roots);

// Lets the old graph's saved tensors go: the caller's edges still own it. Stops at leaves, and at `outside` and what that hangs on when a conversion by the plan is done.
void release_graph(const Tape& tape, const Plan& plan, const torch::autograd::edge_list& roots, std::vector<torch::autograd::Node*> outside);

}  // namespace koila
