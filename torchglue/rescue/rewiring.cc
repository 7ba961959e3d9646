#include "torchglue/rescue/rewiring.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "torchglue/base/graph_walk.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"

namespace koila {

std::vector<torch::autograd::Node*> nodes_behind(const Tape& tape) {
  std::vector<torch::autograd::Node*> nodes;
  for (const TapeValue& value : tape.values()) {
    if (const at::Tensor t = value.lock(); t.defined()) add_nodes_behind(t, nodes);
  }
  return nodes;
}

void add_bridges(const Tape& tape, std::vector<torch::autograd::Node*>& nodes) {
  for (const Bridge& bridge : tape.bridges()) {
    if (!bridge.alive.expired()) nodes.push_back(bridge.node);
  }
}

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
