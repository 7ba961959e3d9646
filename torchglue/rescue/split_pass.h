// Splits a step, for a backward pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <vector>

#include "torchglue/oom/events.h"
#include "torchglue/plan/plan.h"

namespace koila {

inline constexpr const char* kAccumulatesGraphs = "backward(create_graph=True) asks for parameters' gradients that have a graph, which micro-batches do not have; autograd.grad(..., create_graph=True) may.";

// How the pass can be split. Throws CannotConvert; reads only.
Plan plan_pass(const torch::autograd::edge_list& roots, const torch::autograd::edge_list& outputs, bool create_graph, Graphs graphs);

// Turns the step into a region. Returns the pass's roots in the new graph. `oom`: what it is done for, or null.
torch::autograd::edge_list split_step(const torch::autograd::edge_list& roots, const torch::autograd::edge_list& outputs, bool create_graph, Graphs graphs, const OutOfMemory* oom);

// The same for the rest of a pass, which begins at the edges of that node and is done with nodes from that number on: see Note [Past a bridge].
torch::autograd::edge_list split_rest(torch::autograd::Node& beginning, uint64_t done_from, const torch::autograd::edge_list& outputs, Graphs graphs, const OutOfMemory* oom);

// What is asked for and lies inside of the step: its edge is another one when the step has been split.
std::vector<at::Tensor> inner_tensors(const torch::autograd::edge_list& outputs);
torch::autograd::edge_list edges_now(torch::autograd::edge_list outputs, const std::vector<at::Tensor>& inner);

}  // namespace koila
