// Backward of a region.

#include "torchglue/region/node.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>
#include <utility>

#include "torchglue/base/own_hook.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/compat/hooks.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/pass_edges.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/spent_nodes.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// Note [Leaves in their turn]
// All gradients of a region are ready at once, and the engine would take the leaves as they come. It takes what is ready by sequence
// number, the highest first; this node gives a leaf the number of the moment when it was captured, so hooks on parameters fire as they do without
// koila, from the last layer to the first.
class InTurn final : public torch::autograd::Node {
 public:
  InTurn(Edge leaf, const at::Tensor& variable) {
    add_input_metadata(variable);
    add_next_edge(std::move(leaf));
  }
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  std::string name() const override { return "KoilaInTurn"; }
};

}  // namespace

RegionNode::RegionNode(std::shared_ptr<Region> region) : region_(std::move(region)) { topological_nr_ = kTopologicalNumber; }

const RegionNode* region_node_of(const at::Tensor& tensor) {
  const torch::autograd::Node* node = node_of(tensor);
  return node != nullptr && kind_of(*node) == NodeKind::kRegion ? static_cast<const RegionNode*>(node) : nullptr;
}

RegionNode::~RegionNode() {
  if (region_->node_ == this) region_->node_ = nullptr;
}

NodePtr RegionNode::owner(torch::autograd::Node* node) { return node->getptr(); }

void RegionNode::add_capture(Capture& capture) {
  capture.edge = static_cast<int64_t>(next_edges_.size());
  Edge edge = torch::autograd::impl::gradient_edge(capture.tensor);
  if (capture.tensor.is_leaf()) edge = Edge(make_node<InTurn>(std::move(edge), capture.tensor), 0);
  next_edges_.push_back(std::move(edge));
}

bool RegionNode::stands_for_leaf(const Node& node) { return dynamic_cast<const InTurn*>(&node) != nullptr; }

int64_t RegionNode::add_output(const at::Tensor& deferred, ValueId value) {
  outputs_.push_back(value);
  return add_input_metadata(deferred);
}

namespace {

// Whether PyTorch has one node for all results of the operator. What is composed of others has one for each (tensor_split, hsplit), but for what is another name of split().
bool has_one_node(const c10::OperatorHandle& op) {
  constexpr std::string_view kSplit[] = {"aten::chunk", "aten::unsafe_chunk", "aten::split"};
  return !op_traits(op).composite || std::find(std::begin(kSplit), std::end(kSplit), op.schema().name()) != std::end(kSplit);
}

}  // namespace

bool RegionNode::is_there(ValueId output) const { return output < region_->values_.size(); }

bool RegionNode::comes_by_maker(uint32_t output, const std::set<uint32_t>& reached) const {
  std::vector<ValueId> from;
  for (uint32_t other : reached) from.push_back(outputs_[other]);
  const auto path = region_->differentiable_path(from);
  // A write in place gives the same value, and another node.
  size_t maker = region_->instructions_.size();
  while (maker-- > 0) {
    const auto& made = region_->instructions_[maker].outputs;
    if (std::find(made.begin(), made.end(), outputs_[output]) == made.end()) continue;
    return made.size() > 1 && has_one_node(region_->instructions_[maker].op) && std::find(path.begin(), path.end(), maker) != path.end();
  }
  return false;
}

void RegionNode::order_hooks() {
  auto& hooks = tensor_pre_hooks();
  if (hooks.size() < 2 || std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) { return !output_of(*hook); })) return;
  std::stable_sort(hooks.begin(), hooks.end(), [&](const auto& a, const auto& b) { return outputs_[*output_of(*a)] > outputs_[*output_of(*b)]; });
}

void RegionNode::let_go_of_hooks() {
  if (PassEdges::is_within_another()) return;  // the other pass may be in one of them
  const auto& used_up = region_->used_up_;
  const auto is_over = [&](ValueId value) {
    if (region_->released_) return true;
    const auto path = region_->differentiable_path({value});
    return std::any_of(path.begin(), path.end(), [&](size_t i) { return used_up.count(i) > 0; });
  };
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> gone;
  for (auto& hook : tensor_pre_hooks()) {
    const auto output = is_own(*hook) ? std::nullopt : output_of(*hook);
    if (output && is_over(outputs_[*output])) gone.push_back(std::exchange(hook, std::make_unique<NoHook>()));
  }
}

variable_list RegionNode::apply(variable_list&& gradients) {
  if (!works_for_owner()) region_->refuse("another thread's step is under way, and koila follows the steps of one thread at a time.");
  spent_nodes().add(region_);
  return region_->backward(std::move(gradients));
}

void RegionNode::release_variables() { region_->backward_done(); }

variable_list GradientSink::apply(variable_list&& gradients) {
  if (region_->proof_ != nullptr && region_->proof_->takes(use_, rows_, gradients[0])) return {};
  region_->reached(use_, rows_);
  if (gradients[0].defined()) region_->add_gradient(use_, rows_, std::move(gradients[0]));
  return {};
}

void Region::refuse(const std::string& reason) const {
  const int device = device_number(device_);
  refuse_split_step({device, KOILA_BACKWARD, "backward", 0, session().runtime->live_bytes(device)}, reason, batch_);
}

void Region::check_saved() const {
  if (saved_is_lost_ != nullptr) refuse(std::string("a tensor that operators of the step may have saved for backward ") + saved_is_lost_);
}

// A hook on a tensor that operators of the region read on would have to see its full gradient before the rest of backward goes on, see Note [Hooked tensors].
// On a tensor that only the outside reads (a loss) the engine has already run it.
void Region::check_hooks() {
  if (node_ == nullptr) return;
  constexpr const char* kReason = "a hook (register_hook, retain_grad) was put on a tensor inside the step after an operator had read it, and would need that tensor's full gradient.";
  if (!node_->pre_hooks().empty() || !node_->post_hooks().empty()) refuse("a hook hangs on a node of the step's graph (grad_fn.register_hook, grad_fn.register_prehook), which stands for a part of the step.");
  if (node_->tensor_pre_hooks().empty() && node_->retains_grad_hooks().empty()) return;
  std::vector<char> inner(values_.size(), 0);
  for (const Instruction& in : instructions_) {
    if (!takes_gradient(in, values_)) continue;
    for_each_value_read(in, [&](ValueId id) { inner[id] = 1; });
    // What it was before was not hooked, or has ended a stage: then it is written to outside of the region, which is only told of it (see Note [Writes that backward finds]).
    if (in.in_place && in.outputs[0] != kNoValue && in.state.grad_mode) inner[in.outputs[0]] = 0;
  }
  const auto& outputs = static_cast<RegionNode*>(node_)->outputs();
  for_each_hooked_output(*node_, [&](std::optional<size_t> output) {
    if (!output || inner[outputs[*output]]) refuse(kReason);
  });
}

// Who reads such a tensor gets an out-of-memory error, and no number.
void Region::lose_handed_out() {
  for (const Value& value : values_) {
    Group& group = groups_[value.group];
    if (value.impl == nullptr || group.materialised || !group.storage) continue;
    deferred_registry().remove_storage(group.storage.unsafeGetStorageImpl());
    deferred_registry().lose(group.storage);
    group.storage = {};
  }
}

// Note [When a region ends]
// After a backward pass without retain_graph the engine lets go of what the nodes that it ran had saved, and of nothing else: a node that has saved nothing (a cat, a
// slice, a sum) runs again for another loss, and one that the pass did not come by, or that was kept, for the first time. So it is in a region, operator by operator.
// It lives on for what gradients may still be asked of; and for what the program holds and nobody has read, when the pass ran out of memory or
// the program dropped its graph without a backward pass: a tensor that was handed out never loses the way to its value. Otherwise everything is let go.
// A pass within another may be one over a part of what the other comes to next: see consume_ends().
void Region::backward_done() {
  bury_dead();
  for (size_t i : std::exchange(pass_, {})) {
    if (may_save_anything(instructions_[i].op.schema())) used_up_.insert(i);
  }
  std::vector<ValueId> used_up;
  bool more = false;
  if (PassEdges::is_within_another()) consume_ends();
  for (ValueId id = 0; id < values_.size(); ++id) {
    const Value& value = values_[id];
    if ((value.impl == nullptr && !value.consumed) || !value.requires_grad) continue;
    const auto path = differentiable_path({id});
    if (std::any_of(path.begin(), path.end(), [&](size_t i) { return used_up_.count(i) > 0; })) {
      used_up.push_back(id);
    } else {
      more = true;
    }
  }
  if (node_ != nullptr) static_cast<RegionNode*>(node_)->let_go_of_hooks();
  if (more) return let_go_of_used_up(used_up);
  if (!looked_at().empty() || has_deferred() || is_read_by_rows()) {
    over_ = true;
    close();
    drop_first_frame();
    return;
  }
  release();
}

// A Function's backward may differentiate a graph that its forward has made, out of operators of the region that its own result hangs on. Its node has no operator that would have told of it.
void Region::consume_ends() {
  std::vector<char> is_end(values_.size(), 0);  // that an operator makes, which is there still, and none reads
  for (const Instruction& in : instructions_) {
    if (!takes_gradient(in, values_)) continue;
    for (ValueId out : in.outputs) {
      if (out != kNoValue) is_end[out] = 1;
    }
    for_each_value_read(in, [&](ValueId id) { is_end[id] = 0; });
  }
  for (ValueId id = 0; id < values_.size(); ++id) values_[id].consumed |= values_[id].requires_grad && !values_[id].used_up && is_end[id];
}

// What has its value is an ordinary tensor from now on; what only it was made from goes.
void Region::let_go_of_used_up(const std::vector<ValueId>& values) {
  for (ValueId id : values) {
    Value& value = values_[id];
    if (value.impl != nullptr) {
      if (!groups_[value.group].materialised) continue;
      deferred_registry().remove(value.impl);
    }
    value.impl = nullptr;
    value.consumed = false;
    value.used_up = true;
  }
  prune();
}

// Note [What a region may own]
// A capture owns the graph that it hangs on, and that graph what its nodes have saved, which may be tensors that stand for values of this region: conversions leave graphs
// as they are where an operator stays whole, and a Function of the program's may keep a graph in its context. Such a tensor owns the region, and the two would live for ever; a backward pass
// frees what was saved, and a step that is refused has none. A region whose node is gone takes no part in any backward pass, and one that was refused in a pass that was to use up its graph
// would not come through another, no more than plain PyTorch. So then it keeps the memory of what it reads, and no graph.
void Region::let_go_of_graphs() {
  if (released_) return;
  std::vector<at::Tensor> graphs;  // dropped last: what they had saved may end this region
  for (Capture& capture : captures_) {
    if (!capture.tensor.defined() || !has_node(capture.tensor)) continue;
    at::Tensor handle = handle_of(capture.tensor);
    graphs.push_back(std::exchange(capture.tensor, std::move(handle)));
    capture.requires_grad = false;
    capture.graph = nullptr;
    capture.edge = -1;
  }
  if (!graphs.empty()) session().log(KOILA_LOG_DEBUG, "a region let go of " + std::to_string(graphs.size()) + " graphs at the end of a step");
}

void Region::end_refused() {
  if (released_) return;
  close();
  spare_first_frame();
  saved_is_lost_ = "went with the step, which was refused in an earlier backward pass.";
  edge_list edges;  // dropped last, as above
  if (const NodePtr node = this->node()) {
    for (size_t i = 0; i < node->next_edges().size(); ++i) edges.push_back(static_cast<RegionNode&>(*node).exchange_edge(i, {}));
  }
  let_go_of_graphs();
}

void Region::release() {
  if (released_) return;
  session().sizes.mark(device_number(device_));  // boundaries may go
  released_ = true;
  open_ = false;
  if (node_ != nullptr) static_cast<RegionNode*>(node_)->let_go_of_hooks();
  if (!instructions_.empty()) {
    // Draws belong to micro-batches of one size, and a program that was given a seed repeats its own.
    const auto policy = session().sizes.policy_of(batch_);
    if (policy != nullptr && std::any_of(values_.begin(), values_.end(), [](const Value& v) { return v.random; })) policy->stop_timing();
    koila_region_event event{};
    event.device = device_number(device_);
    event.batch = batch_;
    event.micro_batch = micro_batch_;
    event.runs = statistics.runs;
    event.forward_only = statistics.forward_only;
    event.halvings = statistics.halvings;
    event.operators = static_cast<int64_t>(instructions_.size());
    event.seconds = statistics.seconds;
    session().runtime->on_region(&event);
    int64_t bytes = 0;
    for (const Value& v : values_) bytes += c10::multiply_integers(v.sizes) * static_cast<int64_t>(c10::elementSize(v.dtype));
    session().sizes.add_work(batch_, event.operators, bytes);
  }
  if (has_deferred()) {  // it should not come to this
    report_refusal(describe_out_of_memory("backward"), std::string("a check found it wrong (") + invariant::kHandedOutIsReal + "). Please report this as a bug of koila.", batch_);
    lose_handed_out();
  }
  for (ValueId id : looked_at()) deferred_registry().lose(groups_[values_[id].group].storage);
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (values_[id].impl != nullptr) deferred_registry().remove(values_[id].impl);
    values_[id].impl = nullptr;
  }
  for (Group& group : groups_) {
    if (group.storage) deferred_registry().remove_storage(group.storage.unsafeGetStorageImpl());
    if (group.let_go && group.storage.use_count() > 1) deferred_registry().lose(group.storage);
    group.storage = {};
    group.let_go = false;
  }
  first_ = Frame{};
  totals_.clear();
  capture_index_.clear();
  // Last, and from locals: dropping captures may run destructors that come back here.
  auto instructions = std::move(instructions_);
  auto captures = std::move(captures_);
  instructions_.clear();
  captures_.clear();
  uses_.clear();
}

}  // namespace koila
