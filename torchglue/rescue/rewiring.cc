#include "torchglue/rescue/rewiring.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"

namespace koila {

torch::autograd::Edge edge_from_outside(const at::Tensor& tensor) {
  if (const auto entry = deferred_registry().find(tensor.unsafeGetTensorImpl()); entry.region != nullptr) entry.region->consume(entry.value);
  return torch::autograd::impl::gradient_edge(tensor);
}

void rewire(const Tape& tape, TapeValueId value, const at::Tensor& tensor) {
  for (const Bridge& bridge : tape.bridges()) {
    for (const Bridge::End& end : bridge.ends) {
      if (end.value != value || bridge.alive.expired()) continue;
      // Node::set_next_edge() is for nodes that have no parents. The numbers that it would set are for pruning alone, see Pass::run().
      const_cast<torch::autograd::edge_list&>(bridge.node->next_edges())[end.edge] = edge_from_outside(tensor);
    }
  }
}

}  // namespace koila
