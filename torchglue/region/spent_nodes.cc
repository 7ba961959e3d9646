#include "torchglue/region/spent_nodes.h"

#include <algorithm>

#include "torchglue/region/node.h"

namespace koila {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

namespace {

bool is_leaf(const Node& node) { return node.next_edges().empty() || RegionNode::stands_for_leaf(node); }

RegionNode* node_of(const std::weak_ptr<Region>& weak) {
  const auto region = weak.lock();
  return region == nullptr ? nullptr : static_cast<RegionNode*>(region->node().get());
}

}  // namespace

Edge SpentNodes::Way::edge() const {
  if (const auto region = to_region.lock()) return Edge(region->node(), input);
  return Edge(to.lock(), input);
}

void SpentNodes::let_go() {
  edge_list gone;  // dropped last: others of these may go with them
  for (Spent& spent : nodes_) {
    RegionNode* node = node_of(spent.region);
    if (node == nullptr || !node->region()->released()) continue;
    for (size_t i = 0; i < node->next_edges().size(); ++i) {
      const Edge& edge = node->next_edges()[i];
      if (!edge.is_valid() || is_leaf(*edge.function)) continue;
      Way& way = spent.ways.emplace_back(Way{i, edge.input_nr, NodeWeak(NodePtr()), {}});
      if (const auto* other = dynamic_cast<RegionNode*>(edge.function.get())) {
        way.to_region = other->region();
      } else {
        way.to = NodeWeak(edge.function);
      }
      gone.push_back(node->exchange_edge(i, {}));
    }
  }
  gone.clear();
  std::erase_if(nodes_, [](const Spent& spent) { return spent.ways.empty() || node_of(spent.region) == nullptr; });
}

void SpentNodes::put_back() {
  for (Spent& spent : nodes_) {
    RegionNode* node = node_of(spent.region);
    for (const Way& way : std::exchange(spent.ways, {})) {
      if (node != nullptr) node->exchange_edge(way.index, way.edge());
    }
  }
}

SpentNodes& spent_nodes() {
  static auto* nodes = new SpentNodes;  // never destroyed: regions may outlive static destruction
  return *nodes;
}

}  // namespace koila
