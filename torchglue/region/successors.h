// Nodes of a step that has been split, and what stands for them now.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

namespace koila {

// `now`: by the old node's outputs. It lives as long as the old node does.
void succeed(torch::autograd::Node& old, torch::autograd::edge_list now);

// Puts edges of these nodes, and of those behind them, that lead to such a node on what stands for it.
void follow_successors(const torch::autograd::edge_list& roots);
void follow_successors(const std::vector<torch::autograd::Node*>& from);

}  // namespace koila
