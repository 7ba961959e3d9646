#include "torchglue/rescue/interrupted.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/own_hook.h"
#include "torchglue/base/process.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/oom/events.h"
#include "torchglue/region/node.h"
#include "torchglue/rescue/convert.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

class Watch final : public torch::autograd::FunctionPreHook {
 public:
  explicit Watch(std::shared_ptr<bool> reached) : reached_(std::move(reached)) {}
  variable_list operator()(const variable_list& gradients) override {
    *reached_ |= !gradients.empty() && gradients[0].defined();
    return gradients;
  }

 private:
  std::shared_ptr<bool> reached_;
};

class NodeWatch final : public torch::autograd::FunctionPostHook {
 public:
  explicit NodeWatch(std::shared_ptr<bool> ran) : ran_(std::move(ran)) {}
  variable_list operator()(const variable_list& results, const variable_list&) override {
    *ran_ = true;
    return results;
  }

 private:
  std::shared_ptr<bool> ran_;
};

bool has_hooks(const at::Tensor& leaf) {
  if (!torch::autograd::impl::hooks(leaf).empty() || torch::autograd::impl::post_acc_grad_hooks(leaf) != nullptr) return true;
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
  return accumulator && (!accumulator->post_hooks().empty() || !accumulator->pre_hooks().empty());
}

AccumulateGrad* as_leaf(Node& node) { return kind_of(node) == NodeKind::kLeaf ? static_cast<AccumulateGrad*>(&node) : nullptr; }

std::vector<AccumulateGrad*> leaves_of(std::vector<Node*> from) {
  std::vector<AccumulateGrad*> leaves;
  walk_graph(std::move(from), [&](Node* node) {
    if (AccumulateGrad* leaf = as_leaf(*node)) leaves.push_back(leaf);
    return true;
  });
  return leaves;
}

}  // namespace

InterruptedPass::InterruptedPass(const Tape& tape, const edge_list& roots, bool keep_graph, bool functions, bool accumulate_grad)
    : keep_graph_(keep_graph), used_up_(!keep_graph || functions), accumulate_grad_(accumulate_grad) {
  std::vector<Node*> outside, hooked;
  leaves_.reserve(tape.ops().size());
  walk_graph(nodes_of(roots), 2 * tape.ops().size(), [&](Node* node) {
    if (const AccumulateGrad* leaf = as_leaf(*node)) {
      note(leaf->variable);
    } else if (tape.bridge_of(*node) == nullptr && !tape.may_have_made(*node)) {
      outside.push_back(node);
      return false;
    } else {
      if (has_hooks(*node) && tape.bridge_of(*node) == nullptr) hooked.push_back(node);
      hooks_.watch(tape, *node);
    }
    return true;
  });
  if (!used_up_) {
    walk_graph(outside, [&](Node* node) {
      hooks_.watch(tape, *node);
      return true;
    });
    used_up_ = has_functions(roots);
  }
  for (Node* node : outside) {
    outside_.push_back({RegionNode::owner(node), std::make_shared<bool>(false)});
    node_hooks_.emplace_back(outside_.back().node, node->add_post_hook(std::make_unique<NodeWatch>(outside_.back().ran)));
  }
  past_.watch(tape, roots, outside, hooked);
  outer_ = under_way_.exchange(this);
  if (!accumulate_grad_) return;
  if (!outside.empty()) {
    ska::flat_hash_set<const c10::TensorImpl*> known;
    for (const Leaf& leaf : leaves_) known.insert(leaf.variable.unsafeGetTensorImpl());
    for (AccumulateGrad* leaf : leaves_of(std::move(outside))) {
      if (known.insert(leaf->variable.unsafeGetTensorImpl()).second) note(leaf->variable);
    }
  }
  for (Leaf& leaf : leaves_) {
    const at::Tensor& gradient = leaf.variable.grad();
    leaf.shares_version = gradient.defined() && gradient.is_view();
    watch_last_hook(leaf);
    if (!leaf.shares_version && !has_hooks(leaf.variable)) continue;
    leaf.reached = std::make_shared<bool>(false);
    auto& hooks = torch::autograd::impl::hooks(leaf.variable);
    leaf_hooks_.emplace_back(leaf.variable, hooks.insert(hooks.begin(), std::make_unique<Watch>(leaf.reached))->get());
  }
}

// What a reducer of DistributedDataParallel does when the gradient is there, say.
void InterruptedPass::watch_last_hook(Leaf& leaf) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf.variable);
  if (!accumulator || (accumulator->post_hooks().empty() && torch::autograd::impl::post_acc_grad_hooks(leaf.variable) == nullptr)) return;
  leaf.finished = std::make_shared<bool>(false);
  node_hooks_.emplace_back(accumulator, accumulator->add_post_hook(std::make_unique<NodeWatch>(leaf.finished)));
}

void InterruptedPass::stop_watching() {
  if (!std::exchange(watching_, false)) return;
  under_way_ = outer_;
  for (const auto& [variable, watch] : leaf_hooks_) {
    auto& hooks = torch::autograd::impl::hooks(variable);
    const auto ours = std::find_if(hooks.begin(), hooks.end(), [w = watch](const auto& hook) { return hook.get() == w; });
    if (ours != hooks.end()) hooks.erase(ours);
  }
  past_.stop_watching();
  hooks_.stop_watching();
  for (const auto& [node, key] : node_hooks_) node->del_post_hook(key);
  leaf_hooks_.clear();
  node_hooks_.clear();
}

void InterruptedPass::note(const at::Tensor& variable) {
  if (!accumulate_grad_) return;
  take_as_before(leaves_.emplace_back(Leaf{variable, nullptr, 0, nullptr, nullptr}));
}

void InterruptedPass::take_as_before(Leaf& leaf) {
  const at::Tensor& gradient = leaf.variable.grad();
  leaf.gradient = gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr;
  leaf.version = gradient.defined() ? version_of(gradient) : 0;
}

bool InterruptedPass::changed(const Leaf& leaf) {
  const at::Tensor& gradient = leaf.variable.grad();
  const c10::TensorImpl* impl = gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr;
  return impl != leaf.gradient || (impl != nullptr && version_of(gradient) != leaf.version);
}

std::atomic<InterruptedPass*> InterruptedPass::under_way_ = nullptr;

InterruptedPass::Within::Within() : outer_(works_for_owner() ? under_way_.load() : nullptr) {
  if (outer_ == nullptr) return;
  outer_->past_.pass_within(true);
  for (const Leaf& leaf : outer_->leaves_) served_.push_back(changed(leaf));
  hooked_ = outer_->hooks_.reached();
}

InterruptedPass::Within::~Within() {
  if (outer_ == nullptr || under_way_ != outer_) return;
  outer_->past_.pass_within(false);
  outer_->hooks_.forget_pass_within(hooked_);
  for (size_t i = 0; i < served_.size(); ++i) {
    if (!served_[i]) take_as_before(outer_->leaves_[i]);
  }
}

const InterruptedPass::Leaf* InterruptedPass::find(const at::Tensor& variable) const {
  const auto noted = std::find_if(leaves_.begin(), leaves_.end(), [&](const Leaf& leaf) { return leaf.variable.is_same(variable); });
  return noted == leaves_.end() ? nullptr : &*noted;
}

bool InterruptedPass::served(const Leaf& leaf) {
  if (leaf.shares_version) {
    if (*leaf.reached) throw CannotConvert("some parameters have their gradients already, and which cannot be told: they are views of one buffer.");
    return false;
  }
  if (leaf.finished && *leaf.reached && !*leaf.finished) throw CannotConvert("a hook on a parameter, or on another leaf, ran out of memory, and may have done part of its work.");
  const bool is_served = changed(leaf);
  if (!is_served && leaf.reached && *leaf.reached) throw CannotConvert("a hook on a parameter, or on another leaf, has seen its gradient already, and may have used it.");
  return is_served;
}

bool has_functions(const edge_list& roots) {
  bool found = false;
  walk_graph(nodes_of(roots), [&](Node* node) {
    found |= kind_of(*node) == NodeKind::kOther;
    return !found;
  });
  return found;
}

std::string ran_out_in_functions(const edge_list& roots) {
  constexpr size_t kNamesAtMost = 3;
  constexpr std::string_view kSuffix = "Backward";
  std::set<std::string> names;
  walk_graph(nodes_of(roots), [&](Node* node) {
    if (kind_of(*node) != NodeKind::kOther) return true;
    std::string name = node->name();
    if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) name.resize(name.size() - kSuffix.size());
    names.insert(std::move(name));
    return true;
  });
  if (names.count("CompiledFunction") > 0) return "it happened in the backward of a compiled graph (torch.compile), which may have done part of its work.";
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? ": " : ", ") + name;
  return "it happened in the backward of an autograd.Function, which may have done part of its work" + (names.size() <= kNamesAtMost ? text : "") + ".";
}

bool InterruptedPass::runs_checkpoint_again(const edge_list& roots) const {
  bool found = false;
  walk_graph(nodes_of(roots), [&](Node* node) {
    found |= !past_.is_past(*node) && kind_of(*node) == NodeKind::kOther && node->name() == "CheckpointFunctionBackward";
    return !found;
  });
  return found;
}

void check_not_frozen(const edge_list& roots) {
  for (const AccumulateGrad* leaf : leaves_of(nodes_of(roots))) {
    if (!leaf->variable.requires_grad()) throw CannotConvert("a parameter was frozen (requires_grad_(False)) between forward and backward, and the graph is kept for another pass.");
  }
}

std::optional<edge_list> InterruptedPass::remaining(const edge_list& roots, const edge_list& outputs) const {
  edge_list targets = outputs;
  if (accumulate_grad_ && outputs.empty()) {
    for (AccumulateGrad* leaf : leaves_of(nodes_of(roots))) {
      if (leaf->variable.requires_grad()) targets.push_back(torch::autograd::impl::gradient_edge(leaf->variable));  // else it was frozen since, and gets none
    }
  }
  edge_list rest;
  for (const Edge& target : targets) {
    if (accumulate_grad_) {
      auto* leaf = dynamic_cast<AccumulateGrad*>(target.function.get());
      const Leaf* noted = leaf != nullptr ? find(leaf->variable) : nullptr;
      if (noted == nullptr) throw CannotConvert("backward reaches a tensor that is no leaf of this step.");
      if (served(*noted)) continue;
      past_.check(*leaf);
    }
    rest.push_back(target);
  }
  if (rest.empty() && !targets.empty()) return std::nullopt;
  if (past_.any() && (!accumulate_grad_ || keep_graph_)) throw CannotConvert(kHasRun);
  const auto runs_again = [&](Node& node) {
    const auto behind = leaves_of({&node});
    return !accumulate_grad_ || std::any_of(rest.begin(), rest.end(), [&](const Edge& edge) {
      return std::any_of(behind.begin(), behind.end(), [&](const AccumulateGrad* leaf) { return leaf == edge.function.get(); });
    });
  };
  for (const Outside& o : outside_) {
    if (!*o.ran || !used_up_ || !runs_again(*o.node)) continue;
    session().log(KOILA_LOG_DEBUG, "a node from before the tape that the pass has used up: " + o.node->name());
    const auto* of_region = dynamic_cast<RegionNode*>(o.node.get());
    if (of_region != nullptr && of_region->region()->micro_batch() == 1) throw CannotConvert(kOneRowDoesNotFit);
    throw CannotConvert("the backward pass of an earlier part of the step, which this part hangs on, is done and its graph is freed.");
  }
  hooks_.check(runs_again, past_);
  if (rest.size() == targets.size()) return outputs;
  // A checkpoint refuses to run in a pass that is limited to some leaves.
  if (runs_checkpoint_again(roots)) throw CannotConvert("some parameters have their gradients already, and the rest cannot be computed alone: the step has a checkpoint in it that uses re-entrant autograd.");
  return rest;
}

}  // namespace koila
