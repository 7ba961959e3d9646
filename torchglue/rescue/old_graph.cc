#include "torchglue/rescue/old_graph.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "torchglue/base/graph_walk.h"
#include "torchglue/region/node.h"

namespace koila {

using torch::autograd::AccumulateGrad;
using torch::autograd::edge_list;
using torch::autograd::Node;

std::vector<at::Tensor> root_tensors(const Tape& tape, const Plan& plan, const edge_list& roots) {
  std::vector<at::Tensor> tensors(roots.size());
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() || !plan.descends[v]) continue;
    const at::Tensor t = value.lock();
    if (!t.defined() || node_of(t) == nullptr) continue;
    for (size_t r = 0; r < roots.size(); ++r) {
      if (node_of(t) == roots[r].function.get() && t.output_nr() == roots[r].input_nr) tensors[r] = t;
    }
  }
  return tensors;
}

void release_graph(const Tape& tape, const Plan& plan, const edge_list& roots, std::vector<Node*> outside) {
  ska::flat_hash_set<Node*> keep;
  while (!outside.empty()) {
    Node* node = outside.back();
    outside.pop_back();
    if (node == nullptr || !keep.insert(node).second) continue;
    const Bridge* bridge = tape.bridge_of(*node);
    const auto leads_elsewhere = [&](uint32_t edge) {
      return bridge != nullptr && std::any_of(bridge->ends.begin(), bridge->ends.end(), [&](const Bridge::End& end) { return end.edge == edge && !is_as_it_is(plan, end.value); });
    };
    for (uint32_t i = 0; i < node->num_outputs(); ++i) {
      if (!leads_elsewhere(i)) outside.push_back(node->next_edge(i).function.get());
    }
  }
  std::vector<Node*> from = nodes_of(roots);
  for (const Bridge& bridge : tape.bridges()) {
    for (const Bridge::End& end : bridge.ends) {
      if (!is_as_it_is(plan, end.value) && !bridge.alive.expired()) from.push_back(bridge.node->next_edge(end.edge).function.get());
    }
  }
  walk_graph(std::move(from), [&](Node* node) {
    if (keep.count(node) || dynamic_cast<AccumulateGrad*>(node) != nullptr || dynamic_cast<RegionNode*>(node) != nullptr) return false;
    node->release_variables();
    return true;
  });
}

}  // namespace koila
