// What a pass of the autograd engine that ended by an error leaves behind.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "torchglue/base/tls.h"

namespace koila {

// Note [Left in the queue]
// A pass that ended by an error leaves the nodes that were ready, with the gradients that they were to be given, in the queue of the thread that called it, until that thread's next pass comes by
// them; and such a node holds the graph that it leads to, with all that has been saved there: a micro-batch that is tried again, smaller, had no more room than before. A pass over nothing comes by
// them. (Threads of the engine's own look into their queues all the time.) Takes no memory. `execute(roots, gradients)`: runs a pass on this thread.
template <class Execute>
void empty_queue(Execute&& execute) {
  const NoInterceptGuard no_intercept;
  const at::Tensor nothing = at::empty({0}).set_requires_grad(true);
  execute(torch::autograd::edge_list{torch::autograd::impl::gradient_edge(nothing)}, torch::autograd::variable_list{at::empty({0})});
}

// A pass of koila's own, which leaves nothing in the queue. Throws what the pass throws.
inline torch::autograd::variable_list run_engine(const torch::autograd::edge_list& roots, const torch::autograd::variable_list& gradients, bool keep_graph, bool create_graph, bool accumulate_grad,
                                                 const torch::autograd::edge_list& outputs) {
  auto& engine = torch::autograd::Engine::get_default_engine();
  try {
    return engine.execute(roots, gradients, keep_graph, create_graph, accumulate_grad, outputs);
  } catch (...) {
    empty_queue([&](const auto& nothing, const auto& none) { engine.execute(nothing, none, false, false, true, {}); });
    throw;
  }
}

}  // namespace koila
