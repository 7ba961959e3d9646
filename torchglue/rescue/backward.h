// The backward pass of the program: a plain one that runs out of memory is run again from a region.
#pragma once

#include <torch/csrc/autograd/engine.h>

namespace koila {

using ExecuteFn = torch::autograd::variable_list (*)(torch::autograd::Engine*, const torch::autograd::edge_list&,
                                                     const torch::autograd::variable_list&, bool, bool, bool,
                                                     const torch::autograd::edge_list&);

// Stands in for torch::autograd::Engine::execute; `set_real_execute` names the real one first.
void set_real_execute(ExecuteFn real);
torch::autograd::variable_list execute(torch::autograd::Engine* engine, const torch::autograd::edge_list& roots,
                                       const torch::autograd::variable_list& inputs, bool keep_graph, bool create_graph, bool accumulate_grad,
                                       const torch::autograd::edge_list& outputs);

}  // namespace koila
