// Walking a graph of autograd nodes.
#pragma once

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

namespace koila {

// Visits every node that `from` leads to, `from` included, once; null is skipped. visit(node) says whether to go on behind the node. `nodes`: how many there
// may be.
template <class F>
void walk_graph(std::vector<torch::autograd::Node*> from, size_t nodes, F&& visit) {
  ska::flat_hash_set<torch::autograd::Node*> seen;
  seen.reserve(nodes);
  while (!from.empty()) {
    torch::autograd::Node* node = from.back();
    from.pop_back();
    if (node == nullptr || !seen.insert(node).second || !visit(node)) continue;
    for (const auto& edge : node->next_edges()) from.push_back(edge.function.get());
  }
}

template <class F>
void walk_graph(std::vector<torch::autograd::Node*> from, F&& visit) {
  walk_graph(std::move(from), 0, std::forward<F>(visit));
}

inline std::vector<torch::autograd::Node*> nodes_of(const torch::autograd::edge_list& edges) {
  std::vector<torch::autograd::Node*> nodes;
  for (const auto& edge : edges) nodes.push_back(edge.function.get());
  return nodes;
}

// Note [Views that are behind]
// When a tensor is written to in place, a view of it has a graph that is out of date until somebody asks for it (grad_fn()). PyTorch then makes another one, or raises an error where
// the view is one of several (split, unbind). A program that never asks has no error, so koila looks at graphs as they stand: the view's own, and its base's.
inline void add_nodes_behind(const at::Tensor& tensor, std::vector<torch::autograd::Node*>& nodes) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr) return;
  if (meta->grad_fn_) nodes.push_back(meta->grad_fn_.get());
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (view == nullptr || !view->has_bw_view()) return;
  const auto* base = torch::autograd::impl::get_autograd_meta(view->get_backward_view().base_);
  if (base != nullptr && base->grad_fn_) nodes.push_back(base->grad_fn_.get());
}

}  // namespace koila
