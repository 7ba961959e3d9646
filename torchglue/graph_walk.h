// Walking a graph of autograd nodes.
#pragma once

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <utility>
#include <vector>

namespace koila {

// Visits every node that `from` leads to, `from` included, once; null is skipped. visit(node) says whether to go on behind the node.
template <class F>
void walk_graph(std::vector<torch::autograd::Node*> from, F&& visit) {
  ska::flat_hash_set<torch::autograd::Node*> seen;
  while (!from.empty()) {
    torch::autograd::Node* node = from.back();
    from.pop_back();
    if (node == nullptr || !seen.insert(node).second || !visit(node)) continue;
    for (const auto& edge : node->next_edges()) from.push_back(edge.function.get());
  }
}

inline std::vector<torch::autograd::Node*> nodes_of(const torch::autograd::edge_list& edges) {
  std::vector<torch::autograd::Node*> nodes;
  for (const auto& edge : edges) nodes.push_back(edge.function.get());
  return nodes;
}

}  // namespace koila
