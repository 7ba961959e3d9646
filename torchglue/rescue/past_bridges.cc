#include "torchglue/rescue/past_bridges.h"

#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/own_hook.h"
#include "torchglue/region/node.h"
#include "torchglue/rescue/feasible.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

class Beginning final : public Node {
 public:
  explicit Beginning(edge_list&& edges) : Node(std::move(edges)) {}
  variable_list apply(variable_list&&) override { return {}; }
  std::string name() const override { return "KoilaBeginning"; }
};

}  // namespace

void PastBridges::State::come_by(uint64_t number) {
  cut = number;
  hooked = NodePtr();
  entering.clear();
  spared = false;
  for (Source& source : sources) {
    for (Crossing& crossing : source.crossings) {
      if (crossing.level >= cut) crossing.gradient.reset();
    }
  }
}

// What nobody else holds is memory.
bool PastBridges::State::spare(int64_t lacking) {
  std::vector<at::Tensor*> kept;
  int64_t bytes = 0;
  const auto add = [&](at::Tensor& gradient) {
    if (!gradient.defined() || gradient.use_count() > 1 || !gradient.has_storage() || gradient.storage().use_count() > 1) return;
    kept.push_back(&gradient);
    bytes += static_cast<int64_t>(gradient.storage().nbytes());
  };
  for (Source& source : sources) {
    for (Crossing& crossing : source.crossings) add(crossing.gradient);
  }
  const size_t of_sources = kept.size();
  for (at::Tensor& gradient : entering) add(gradient);
  if (kept.empty() || bytes < lacking) return false;
  spared |= kept.size() > of_sources;
  for (Source& source : sources) {
    for (Crossing& crossing : source.crossings) crossing.spared |= std::find(kept.begin(), kept.end(), &crossing.gradient) != kept.end();
  }
  for (at::Tensor* gradient : kept) gradient->reset();
  return true;
}

thread_local PastBridges::State* PastBridges::under_way_ = nullptr;

bool spare_gradients(int64_t lacking) { return PastBridges::under_way_ != nullptr && PastBridges::under_way_->spare(lacking); }

class PastBridges::Watch final : public torch::autograd::FunctionPostHook {
 public:
  Watch(std::shared_ptr<State> state, size_t source) : state_(std::move(state)), source_(source) {}
  variable_list operator()(const variable_list& results, const variable_list&) override {
    if (state_->within > 0) return results;
    Source& source = state_->sources[source_];
    source.ran = true;
    for (Crossing& crossing : source.crossings) {
      if (crossing.edge < results.size()) crossing.gradient = results[crossing.edge];
    }
    if (source.is_bridge && source.number < state_->cut) state_->come_by(source.number);
    return results;
  }

 private:
  std::shared_ptr<State> state_;
  size_t source_;
};

// Called behind the hooks of the tensors that the node made.
class PastBridges::HookWatch final : public OwnHook {
 public:
  HookWatch(std::shared_ptr<State> state, NodePtr node) : state_(std::move(state)), node_(std::move(node)) {}
  variable_list operator()(const variable_list& gradients) override {
    if (state_->within == 0 && node_->sequence_nr() + 1 <= state_->cut) {
      state_->come_by(node_->sequence_nr() + 1);
      state_->hooked = node_;
      state_->entering = gradients;
    }
    return gradients;
  }

 private:
  std::shared_ptr<State> state_;
  NodePtr node_;
};

void PastBridges::watch(const Tape& tape, const edge_list& roots, const std::vector<Node*>& outside, const std::vector<Node*>& hooked) {
  if (tape.bridges().empty() && hooked.empty()) return;
  ska::flat_hash_set<const Node*> ends(outside.begin(), outside.end());
  std::vector<Node*> nodes;
  std::vector<uint64_t> levels;
  ska::flat_hash_map<const Node*, uint64_t> at_the_end;
  walk_graph(nodes_of(roots), [&](Node* node) {
    if (ends.count(node) > 0 || kind_of(*node) == NodeKind::kLeaf) return false;
    nodes.push_back(node);
    if (tape.bridge_of(*node) != nullptr) levels.push_back(node->sequence_nr());
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid() || (ends.count(edge.function.get()) == 0 && kind_of(*edge.function) != NodeKind::kLeaf)) continue;
      auto [it, fresh] = at_the_end.emplace(edge.function.get(), node->sequence_nr());
      if (!fresh) it->second = std::min(it->second, node->sequence_nr());
    }
    return true;
  });
  for (const Node* node : hooked) levels.push_back(node->sequence_nr() + 1);
  // Numbers are compared, which each thread counts for itself.
  if (levels.empty() || std::any_of(nodes.begin(), nodes.end(), [&](const Node* node) { return node->thread_id() != nodes[0]->thread_id(); })) return;
  state_ = std::make_shared<State>();
  for (Node* node : nodes) {
    Source source{RegionNode::owner(node), node->sequence_nr(), tape.bridge_of(*node) != nullptr, {}};
    for (uint32_t i = 0; i < node->num_outputs(); ++i) {
      const Edge& edge = node->next_edge(i);
      if (!edge.is_valid()) continue;
      const auto end = at_the_end.find(edge.function.get());
      const uint64_t level = end != at_the_end.end() ? end->second : edge.function->sequence_nr();
      if (std::any_of(levels.begin(), levels.end(), [&](uint64_t bridge) { return level < bridge && bridge <= source.number; })) source.crossings.push_back({i, level, {}});
    }
    if (!source.is_bridge && source.crossings.empty()) continue;
    state_->sources.push_back(std::move(source));
    hooks_.emplace_back(state_->sources.back().node, node->add_post_hook(std::make_unique<Watch>(state_, state_->sources.size() - 1)));
  }
  for (Node* node : hooked) {
    before_.emplace_back(RegionNode::owner(node), nullptr);
    auto& hooks = node->pre_hooks();
    before_.back().second = hooks.insert(hooks.begin(), std::make_unique<HookWatch>(state_, before_.back().first))->get();
  }
  leaves_ = std::move(at_the_end);
  outer_ = std::exchange(under_way_, state_.get());
}

void PastBridges::stop_watching() {
  if (state_ != nullptr && under_way_ == state_.get()) under_way_ = outer_;
  for (const auto& [node, key] : hooks_) node->del_post_hook(key);
  for (const auto& [node, watch] : before_) {
    auto& hooks = node->pre_hooks();
    const auto ours = std::find_if(hooks.begin(), hooks.end(), [w = watch](const auto& hook) { return hook.get() == w; });
    if (ours != hooks.end()) hooks.erase(ours);
  }
  hooks_.clear();
  before_.clear();
}

void PastBridges::check(const AccumulateGrad& leaf) const {
  if (!any()) return;
  const auto found = leaves_.find(&leaf);
  if (found == leaves_.end() || found->second >= state_->cut) throw CannotConvert(kHasRun);
}

PastBridges::Rest PastBridges::rest() const {
  edge_list edges;
  Rest rest;
  for (const Source& source : state_->sources) {
    if (source.number < state_->cut) continue;
    for (const Crossing& crossing : source.crossings) {
      if (crossing.level >= state_->cut || (state_->hooked && source.node->next_edge(crossing.edge).function == state_->hooked)) continue;
      if (!source.ran || crossing.spared) throw CannotConvert(kHasRun);
      if (!crossing.gradient.defined()) continue;
      edges.push_back(source.node->next_edge(crossing.edge));
      rest.gradients.push_back(crossing.gradient);
    }
  }
  if (state_->hooked) {
    if (state_->spared) throw CannotConvert(kHasRun);
    for (uint32_t i = 0; i < state_->entering.size(); ++i) {
      if (!state_->entering[i].defined()) continue;
      edges.emplace_back(state_->hooked, i);
      rest.gradients.push_back(state_->entering[i]);
    }
    state_->hooked->tensor_pre_hooks().clear();
    state_->hooked->retains_grad_hooks().clear();
  }
  rest.from = make_node<Beginning>(std::move(edges));
  return rest;
}

}  // namespace koila
