#include "torchglue/rescue/out_of_sight.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/region/node.h"
#include "torchglue/region/successors.h"
#include "torchglue/rescue/rewiring.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

namespace {

using Successors = ska::flat_hash_map<Node*, std::vector<at::Tensor>>;  // by output

// The old graph that has outlived a conversion.
class Remains {
 public:
  explicit Remains(const Successors& successors) {
    std::vector<Node*> from;
    for (const auto& [node, tensors] : successors) from.push_back(node);
    walk_graph(std::move(from), [&](Node* node) {
      if (kind_of(*node) == NodeKind::kLeaf || kind_of(*node) == NodeKind::kRegion) return false;
      nodes_.push_back(node);
      for (const Edge& edge : node->next_edges()) ++edges_to_[edge.function.get()];
      return true;
    });
  }

  // `by_us`: references that the caller holds.
  bool is_held_elsewhere(Node* node, size_t by_us) const {
    const NodePtr owner = RegionNode::owner(node);
    const auto edges = edges_to_.find(node);
    return owner.use_count() > 1 + by_us + (edges == edges_to_.end() ? 0 : edges->second);
  }

  const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  std::vector<Node*> nodes_;
  ska::flat_hash_map<Node*, size_t> edges_to_;
};

// What somebody whom the tape knows hangs on.
ska::flat_hash_set<Node*> known_graphs(const Tape& tape) {
  std::vector<Node*> from = nodes_behind(tape);
  add_bridges(tape, from);
  ska::flat_hash_set<Node*> known;
  walk_graph(std::move(from), [&](Node* node) { return known.insert(node).second; });
  return known;
}

bool is_whole(Node& node, const std::vector<at::Tensor>& tensors) {
  return tensors.size() == node.num_inputs() && std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined(); });
}

void hang_on(Node& node, const std::vector<at::Tensor>& tensors) {
  edge_list edges;
  for (const at::Tensor& t : tensors) edges.push_back(edge_from_outside(t));
  succeed(node, std::move(edges));
}

}  // namespace

OutOfSight::OutOfSight(const Tape& tape) {
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const at::Tensor t = tape.values()[v].is_capture() ? at::Tensor() : tape.values()[v].lock();
    const auto* meta = t.defined() ? torch::autograd::impl::get_autograd_meta(t) : nullptr;
    if (meta != nullptr && meta->grad_fn_ && tape.is_current(v)) old_.push_back({NodeWeak(meta->grad_fn_), meta->output_nr_, v});
  }
}

void OutOfSight::tell(const Tape& tape) const {
  std::vector<NodePtr> alive;
  Successors successors;
  for (const Old& old : old_) {
    NodePtr node = old.node.lock();
    const at::Tensor now = node ? tape.values()[old.value].lock() : at::Tensor();
    if (!now.defined() || node_of(now) == nullptr || node_of(now) == node.get()) continue;
    auto [entry, fresh] = successors.emplace(node.get(), std::vector<at::Tensor>(node->num_inputs()));
    entry->second[old.output_nr] = now;
    if (fresh) alive.push_back(std::move(node));
  }
  if (alive.empty()) return;
  const Remains remains(successors);
  ska::flat_hash_set<Node*> stays = known_graphs(tape);
  std::vector<Node*> unknown;
  for (Node* node : remains.nodes()) {
    const auto found = successors.find(node);
    const bool is_old = found != successors.end();
    if (remains.is_held_elsewhere(node, is_old ? 1 : 0) && !(is_old && is_whole(*node, found->second))) unknown.push_back(node);
  }
  walk_graph(std::move(unknown), [&](Node* node) { return stays.insert(node).second; });
  for (Node* node : remains.nodes()) {
    if (stays.count(node) > 0) continue;
    if (const auto found = successors.find(node); found != successors.end() && remains.is_held_elsewhere(node, 1)) hang_on(*node, found->second);
    node->release_variables();
  }
}

}  // namespace koila
