#include "torchglue/region/pass_edges.h"

#include <c10/util/flat_hash_map.h>

#include <set>

#include "torchglue/region/node.h"

namespace koila {

using torch::autograd::Edge;
using torch::autograd::Node;

PassEdges::PassEdges(const torch::autograd::edge_list& roots) {
  struct Reached {
    NodePtr node;
    std::set<uint32_t> inputs;
    std::set<size_t> edges;
  };
  ska::flat_hash_map<RegionNode*, Reached> regions;
  ska::flat_hash_set<Node*> seen;
  std::vector<Edge> stack(roots.begin(), roots.end());
  while (!stack.empty()) {
    const Edge edge = std::move(stack.back());
    stack.pop_back();
    if (!edge.function) continue;
    auto* region_node = dynamic_cast<RegionNode*>(edge.function.get());
    if (region_node == nullptr) {
      if (!seen.insert(edge.function.get()).second) continue;
      for (const Edge& next : edge.function->next_edges()) stack.push_back(next);
      continue;
    }
    Reached& reached = regions[region_node];
    reached.node = edge.function;
    if (!reached.inputs.insert(edge.input_nr).second) continue;
    for (size_t wanted : region_node->region()->edges_behind(region_node->outputs()[edge.input_nr])) {
      if (reached.edges.insert(wanted).second) stack.push_back(region_node->next_edges()[wanted]);
    }
  }
  for (auto& [node, reached] : regions) {
    auto& taken = taken_.emplace_back(reached.node, std::vector<std::pair<size_t, Edge>>()).second;
    for (size_t i = 0; i < node->next_edges().size(); ++i) {
      if (reached.edges.count(i) == 0) taken.emplace_back(i, node->exchange_edge(i, Edge()));
    }
  }
}

PassEdges::~PassEdges() {
  for (auto& [node, taken] : taken_) {
    for (auto& [i, edge] : taken) static_cast<RegionNode*>(node.get())->exchange_edge(i, std::move(edge));
  }
}

}  // namespace koila
