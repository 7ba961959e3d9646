#include "torchglue/region/pass_edges.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <set>

#include "torchglue/base/own_hook.h"
#include "torchglue/base/process.h"
#include "torchglue/compat/hooks.h"
#include "torchglue/region/node.h"
#include "torchglue/region/region.h"

namespace koila {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

namespace {

// Of the step that koila follows. A hook of its pass may run on a thread of the engine's.
std::atomic<PassEdges*> current = nullptr;

// What a pass comes by of a region's node: outputs that it brings gradients for, and edges that they go on along.
struct Reached {
  NodePtr node;
  std::set<uint32_t> outputs;
  std::set<size_t> edges;
};

// Follows gradients from the edges. `visit` is given every edge that they come along, and says whether to go on behind it.
template <class Visit>
void follow(const edge_list& from, Visit&& visit) {
  std::vector<Edge> stack(from.begin(), from.end());
  while (!stack.empty()) {
    const Edge edge = std::move(stack.back());
    stack.pop_back();
    if (!edge.function || !visit(edge)) continue;
    auto* region_node = dynamic_cast<RegionNode*>(edge.function.get());
    if (region_node == nullptr) {
      for (const Edge& next : edge.function->next_edges()) stack.push_back(next);
      continue;
    }
    for (size_t wanted : region_node->region()->edges_behind(region_node->outputs()[edge.input_nr])) stack.push_back(region_node->next_edges()[wanted]);
  }
}

ska::flat_hash_map<RegionNode*, Reached> reach(const edge_list& roots) {
  ska::flat_hash_map<RegionNode*, Reached> regions;
  ska::flat_hash_set<Node*> seen;
  follow(roots, [&](const Edge& edge) {
    auto* region_node = dynamic_cast<RegionNode*>(edge.function.get());
    if (region_node == nullptr) return seen.insert(edge.function.get()).second;
    Reached& reached = regions[region_node];
    reached.node = edge.function;
    if (!reached.outputs.insert(edge.input_nr).second) return false;
    for (size_t wanted : region_node->region()->edges_behind(region_node->outputs()[edge.input_nr])) reached.edges.insert(wanted);
    return true;
  });
  return regions;
}

// Whether a gradient that flows along `from` reaches one of the targets. A pass without targets is for everything.
bool leads_to(const Edge& from, const edge_list& targets) {
  bool found = targets.empty();
  std::set<std::pair<Node*, uint32_t>> seen;
  follow({from}, [&](const Edge& edge) {
    const bool is_region = dynamic_cast<RegionNode*>(edge.function.get()) != nullptr;
    found = found || std::find(targets.begin(), targets.end(), edge) != targets.end();
    return !found && seen.emplace(edge.function.get(), is_region ? edge.input_nr : 0).second;
  });
  return found;
}

}  // namespace

std::vector<std::shared_ptr<Region>> regions_behind(const edge_list& roots) {
  std::vector<std::shared_ptr<Region>> regions;
  for (const auto& [node, reached] : reach(roots)) regions.push_back(node->region());
  return regions;
}

bool calls_hooks(const edge_list& roots, const edge_list& targets) {
  const auto regions = reach(roots);
  return std::any_of(regions.begin(), regions.end(), [&](const auto& entry) {
    const auto& [node, reached] = entry;
    const auto comes_by = [&, &at = reached](std::optional<size_t> output) {
      return output && at.outputs.count(static_cast<uint32_t>(*output)) > 0 && leads_to(Edge(at.node, static_cast<uint32_t>(*output)), targets);
    };
    const auto& hooks = node->tensor_pre_hooks();
    const auto& retained = node->retains_grad_hooks();
    return std::any_of(hooks.begin(), hooks.end(), [&](const auto& hook) { return !is_own(*hook) && comes_by(output_of(*hook)); }) ||
           std::any_of(retained.begin(), retained.end(), [&](const auto& hook) { return comes_by(hook.first); });
  });
}

bool comes_whole(const edge_list& roots, const Edge& inner) {
  auto* node = dynamic_cast<RegionNode*>(inner.function.get());
  if (node == nullptr) return true;
  const auto regions = reach(roots);
  const auto found = regions.find(node);
  return found == regions.end() || std::none_of(found->second.outputs.begin(), found->second.outputs.end(), [&](uint32_t output) {
    return output != inner.input_nr && node->region()->leads_to(node->outputs()[output], node->outputs()[inner.input_nr]);
  });
}

PassEdges::PassEdges(const edge_list& roots, const edge_list& targets) : outer_(current) {
  if (outer_ != nullptr) outer_->exchange();
  for (auto& [node, reached] : reach(roots)) {
    Taken& taken = taken_.emplace_back();
    taken.node = reached.node;
    if (outer_ == nullptr) node->order_hooks();
    const auto is_called = [&, node = node, &reached = reached](uint32_t output) {
      if (reached.outputs.count(output) > 0) return leads_to(Edge(reached.node, output), targets);
      return node->comes_by_maker(output, reached.outputs);
    };
    for (size_t i = 0; i < node->next_edges().size(); ++i) {
      if (reached.edges.count(i) == 0) taken.edges.emplace_back(i, Edge());
    }
    const auto& hooks = node->tensor_pre_hooks();
    for (size_t i = 0; i < hooks.size(); ++i) {
      const auto output = output_of(*hooks[i]);
      if (output && !is_called(static_cast<uint32_t>(*output))) taken.hooks.emplace_back(i, std::make_unique<NoHook>());
    }
    for (const auto& [output, hook] : node->retains_grad_hooks()) {
      if (reached.outputs.count(static_cast<uint32_t>(output)) == 0 || !leads_to(Edge(reached.node, static_cast<uint32_t>(output)), targets)) taken.retains_grad.emplace_back(output, std::make_unique<NoHook>());
    }
  }
  exchange();
  current = this;
}

PassEdges::~PassEdges() {
  exchange();
  current = outer_;
  if (outer_ != nullptr) outer_->exchange();
}

bool PassEdges::taken() { return current != nullptr && works_for_owner(); }

bool PassEdges::is_within_another() {
  const PassEdges* inner = current;
  return inner != nullptr && inner->outer_ != nullptr;
}

void PassEdges::exchange() {
  for (Taken& taken : taken_) {
    auto* node = static_cast<RegionNode*>(taken.node.get());
    for (auto& [i, edge] : taken.edges) edge = node->exchange_edge(i, std::move(edge));
    auto& hooks = node->tensor_pre_hooks();
    for (auto& [i, hook] : taken.hooks) {
      if (i < hooks.size()) std::swap(hooks[i], hook);
    }
    auto& retaining = node->retains_grad_hooks();
    for (auto& [output, hook] : taken.retains_grad) {
      if (const auto it = retaining.find(output); it != retaining.end()) std::swap(it->second, hook);
    }
  }
}

}  // namespace koila
