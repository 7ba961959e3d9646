// Backward of a region.

#include "torchglue/region/node.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "torchglue/collectives.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/real_values.h"
#include "torchglue/rescue/events.h"
#include "torchglue/rescue/oom.h"
#include "torchglue/rescue/python_error.h"
#include "torchglue/session.h"
#include "torchglue/tensor_memory.h"

namespace koila {

using torch::autograd::Edge;
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

// PyTorch's own words.
constexpr const char* kSecondTime =
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if "
    "you need to backward through the graph a second time or if you need to access saved tensors after calling backward.";

// Makes the copies that micro-batches have read what the tensors have become: see Note [Captures that change].
class AsTheyAreNow {
 public:
  explicit AsTheyAreNow(const std::vector<Capture>& captures) {
    for (const Capture& capture : captures) {
      if (!capture.before.defined() || !capture.tensor.defined()) continue;
      if (version_of(capture.tensor) != capture.version) {
        counted_.push_back(capture.before);
      } else {
        moved_.push_back({capture.before.variable_data(), capture.before.variable_data().clone(), capture.tensor.variable_data()});
      }
    }
  }
  void begin() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& before : counted_) torch::autograd::impl::bump_version(before);
    for (const Moved& m : moved_) m.copy.copy_(m.now);
  }
  void end() {
    const at::NoGradGuard no_grad;
    for (const Moved& m : moved_) m.copy.copy_(m.then);
  }

 private:
  struct Moved {
    at::Tensor copy, then, now;
  };
  std::vector<at::Tensor> counted_;
  std::vector<Moved> moved_;
};

}  // namespace

RegionNode::RegionNode(std::shared_ptr<Region> region) : region_(std::move(region)) { topological_nr_ = uint64_t{1} << 40; }

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

int64_t RegionNode::add_output(const at::Tensor& deferred, ValueId value) {
  outputs_.push_back(value);
  return add_input_metadata(deferred);
}

variable_list RegionNode::apply(variable_list&& gradients) { return region_->backward(std::move(gradients)); }

void RegionNode::release_variables() { region_->backward_done(); }

variable_list GradientSink::apply(variable_list&& gradients) {
  if (region_->proof_ != nullptr && region_->proof_->takes(use_, rows_, gradients[0])) return {};
  region_->reached(use_, rows_);
  if (gradients[0].defined()) region_->add_gradient(use_, rows_, std::move(gradients[0]));
  return {};
}

void Region::reached(uint32_t use, Rows rows) {
  int64_t& until = reached_until_[use];
  if (rows.end <= until) return;
  if (rows.begin != until) broken(invariant::kSumsReachTheirCount, "a gradient's rows " + std::to_string(rows.begin) + " follow on row " + std::to_string(until));
  until = rows.end;
}

void Region::add_gradient(uint32_t use, Rows rows, at::Tensor&& gradient) {
  if (rows.end <= totals_until_[use]) return;  // summed before a later part of the micro-batch ran out of memory
  if (!wanted_[uses_[use].capture]) return;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  if (proof_ != nullptr) proof_->add_gradient(use, rows, gradient);
  at::Tensor& total = totals_[use];
  const Placement& placement = uses_[use].placement;
  const at::Tensor& full = captures_[uses_[use].capture].as_read();
  if (placement.is_shard()) {
    if (!total.defined()) total = boundaries().zeros_like(full.detach(), gradient.scalar_type());
    send_out(total, placement, rows, gradient);
  } else if (gradient.is_sparse()) {
    total = total.defined() ? total + gradient : std::move(gradient);
  } else if (total.defined()) {
    total.add_(gradient);
  } else if (const auto type = at::toOpMathType(gradient.scalar_type()); type != gradient.scalar_type() && rows.count() < batch_) {
    total = gradient.to(type);
  } else {
    // The engine gave it away when nobody else holds it; an expanded or shared one is copied.
    const bool ours = gradient.use_count() == 1 && gradient.has_storage() && gradient.storage().use_count() == 1 &&
                      gradient.is_non_overlapping_and_dense();
    total = ours ? std::move(gradient) : gradient.clone();
  }
  totals_until_[use] = rows.end;
}

void Region::refuse(const std::string& reason) const {
  const int device = device_number(device_);
  refuse_split_step({device, KOILA_BACKWARD, "backward", 0, session().runtime->live_bytes(device)}, reason, batch_);
}

// A hook on a tensor that operators of the region read on would have to see its full gradient before the rest of backward goes on.
// On a tensor that only the outside reads (a loss) the engine has already run it.
void Region::check_hooks() {
  if (node_ == nullptr) return;
  constexpr const char* kReason = "a hook (register_hook, retain_grad) on a tensor inside the step would need that tensor's full gradient.";
  if (!node_->pre_hooks().empty() || !node_->post_hooks().empty()) refuse(kReason);
  size_t hooks = node_->tensor_pre_hooks().size() + node_->retains_grad_hooks().size();
  if (hooks == 0) return;
  std::vector<char> inner(values_.size(), 0);
  for (size_t i = 0; i < instructions_.size(); ++i) {
    for (const Argument& argument : instructions_[i].arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue) inner[o.id] = 1;
      }
    }
  }
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (values_[id].impl == nullptr) continue;
    const auto* meta = static_cast<torch::autograd::AutogradMeta*>(values_[id].impl->autograd_meta());
    const size_t own = meta->hooks_.size() + (meta->retains_grad_ ? 1 : 0);
    if (own > 0 && inner[id]) refuse(kReason);
    hooks -= std::min(hooks, own);
  }
  if (hooks > 0) refuse(kReason);
}

// The engine adds up what several nodes say of one tensor, at full size; nobody could make the pass again that ran out there.
void Region::leave_room_for(const std::vector<at::Tensor>& gradients) {
  int64_t largest = 0;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined() && gradient.has_storage()) largest = std::max(largest, static_cast<int64_t>(gradient.nbytes()));
  }
  constexpr int64_t kWorthAsking = 1 << 20;  // a CUDA device is asked for what it has free
  if (largest < kWorthAsking && !device_.is_cpu()) return;
  if (const auto available = available_bytes(device_); available && *available < 3 * largest) make_room();
}

// The last pass of a step is made two, three quarters and the rest: the memory model wants passes of two sizes.
int64_t Region::with_another_size(int64_t begin, int64_t end) const {
  return begin > 0 && end == batch_ && end - begin >= 4 && end - begin > micro_batch_ / 2 ? begin + (end - begin) * 3 / 4 : end;
}

std::vector<at::Tensor> Region::backward(std::vector<at::Tensor>&& gradients) {
  TORCH_CHECK(!released_, kSecondTime);
  bury_dead();
  check_sound();
  const RegionWork work;
  const Offload::MayFail may_fail;
  const auto started = std::chrono::steady_clock::now();
  auto* node = static_cast<RegionNode*>(node_);
  if (at::GradMode::is_enabled()) refuse("create_graph=True asks for a graph of the backward pass, which micro-batches do not have.");
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined() && gradient.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched}))) {
      refuse("is_grads_batched=True asks for many backward passes at once.");
    }
  }

  if (exchanged_saved_) refuse("a tensor that operators of the step may have saved for backward was written to by a collective operation since.");

  std::vector<std::pair<ValueId, at::Tensor>> roots;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) roots.emplace_back(node->outputs()[i], gradients[i]);
  }
  wanted_.assign(captures_.size(), 0);
  for (size_t c = 0; c < captures_.size(); ++c) {
    const int64_t edge = captures_[c].edge;
    wanted_[c] = edge >= 0 && node->task_should_compute_output(static_cast<size_t>(edge));
  }

  const NoInterceptGuard no_intercept;
  std::vector<ValueId> keep;
  for (const auto& [value, gradient] : roots) keep.push_back(value);
  const auto path = on_the_way(differentiable_path(keep));
  TORCH_CHECK(std::none_of(path.begin(), path.end(), [&](size_t i) { return used_up_.count(i) > 0; }) && std::none_of(keep.begin(), keep.end(), [&](ValueId v) { return values_[v].used_up; }), kSecondTime);
  pass_ = {path.begin(), path.end()};

  choose_size();
  // What the program holds gets its value on the way: after backward the parameters may change.
  std::vector<Held> held;
  for (ValueId id : held_deferred()) {
    const ValueId base = groups_[values_[id].group].base;
    if (std::none_of(held.begin(), held.end(), [&](const Held& h) { return h.base == base; })) held.push_back({base, {}, {}, 0});
  }
  for (Held& h : held) {
    h.full = empty_full(values_[h.base].group);
    keep.push_back(h.base);
  }
  const Schedule plan = schedule(keep);
  check_captures(plan);
  check_moved(plan);
  verify(plan);
  Proof proof(*this, plan, keep);
  proof_ = &proof;
  const auto pass_over = c10::make_scope_exit([this] { proof_ = nullptr; });
  const bool random = std::any_of(values_.begin(), values_.end(), [](const Value& v) { return v.random; });

  totals_.assign(uses_.size(), {});
  totals_until_.assign(uses_.size(), 0);
  reached_until_.assign(uses_.size(), 0);
  const auto start_over = [&] {
    std::fill(totals_.begin(), totals_.end(), at::Tensor());
    proof.start_over();
    std::fill(totals_until_.begin(), totals_until_.end(), 0);
    std::fill(reached_until_.begin(), reached_until_.end(), 0);
    for (Held& h : held) {
      h.until = 0;
      h.sum.reset();
    }
  };

  AsTheyAreNow changed(captures_);
  const auto store = [&](const Frame& frame) {
    const at::NoGradGuard no_grad;
    proof.add(frame);
    for (Held& h : held) {
      if (store_rows(h, frame.values[h.base], frame.rows)) proof.stored(h.base, frame.rows, frame.values[h.base]);
    }
  };
  const auto backward_of = [&](Frame& frame) {
    torch::autograd::edge_list edges;
    variable_list parts;
    for (const auto& [value, gradient] : roots) {
      const at::Tensor& local = frame.values[value];
      if (!has_node(local)) continue;
      edges.push_back(torch::autograd::impl::gradient_edge(local));
      const Placement& placement = values_[value].placement;
      const at::NoGradGuard no_grad;
      parts.push_back(placement.is_shard() ? slice_rows(gradient, placement, batch_, frame.rows) : gradient.to(local.scalar_type()));
    }
    frame.values.clear();
    frame.uses.clear();
    if (!edges.empty()) {
      changed.begin();
      const auto forward_again = c10::make_scope_exit([&] { changed.end(); });
      torch::autograd::Engine::get_default_engine().execute(edges, parts, /*keep_graph=*/false, /*create_graph=*/false,
                                                            /*accumulate_grad=*/true, {});
    }
  };

  int64_t position = 0;
  int tries = 0;
  while (position < batch_) {
    const bool stands_by = position == 0 && first_.next == instructions_.size() && std::all_of(keep.begin(), keep.end(), [&](ValueId v) {
                             return v < first_.values.size() && first_.values[v].defined();
                           });
    int64_t end = end_of_pass(position, micro_batch_);
    if (stands_by) {
      end = first_.rows.end;
    } else if (position == 0) {
      drop_first_frame();
    }
    const auto policy = session().sizes.policy_of(batch_);
    if (policy != nullptr && !policy->knows_slope() && !random) end = with_another_size(position, end);
    // A retry ends where the failed pass ended, so that sums which that pass reached are not made twice.
    for (int64_t until : totals_until_) {
      if (until > position) end = std::min(end, until);
    }
    for (int64_t until : reached_until_) {
      if (until > position) end = std::min(end, until);
    }
    for (const Held& h : held) {
      if (h.until > position) end = std::min(end, h.until);
    }
    std::exception_ptr ran_out;
    try {
      Frame frame{{position, end}, /*grad=*/true, {}, {}, 0};
      StepSizes::Pass pass(session().sizes, batch_, end - position, position == 0);
      if (stands_by) {
        frame = std::move(first_);
        first_ = Frame{{0, lead()}, true, {}, {}, 0};
      } else {
        const at::AutoGradMode grad(true);
        ask_ahead({end, std::min(end + micro_batch_, batch_)}, plan);
        run(frame, instructions_.size(), &plan);
      }
      store(frame);
      backward_of(frame);
      pass.finish();
      position = end;
      tries = 0;
      continue;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      ran_out = kept_exception(error);
    }
    // Other draws for part of the rows would give gradients of two different steps: with random operators all rows are made anew.
    const bool summed = std::any_of(totals_until_.begin(), totals_until_.end(), [&](int64_t until) { return until > position; }) ||
                        std::any_of(held.begin(), held.end(), [&](const Held& h) { return h.until > position; });
    const bool room = try_again(tries) || make_room();
    drop_first_frame();
    if (room) continue;
    const bool can_shrink = micro_batch_ > 1 && end - position > 1 && !observed_random_;
    if (!can_shrink) {
      if (serve_rows()) continue;
      totals_.clear();
      std::rethrow_exception(ran_out);
    }
    halve(end - position);
    if (random && summed) {
      start_over();
      position = 0;
    }
  }

  ahead_.clear();
  side_.join();
  check_counts(held);
  proof.check_gradients();
  for (const Held& h : held) proof.check_value(h.base, h.full);
  try {
    proof.finish(backward_of);
  } catch (...) {
    totals_.clear();
    throw;
  }
  std::vector<at::Tensor> results(node->num_outputs());
  for (uint32_t u = 0; u < uses_.size(); ++u) {
    const Capture& capture = captures_[uses_[u].capture];
    at::Tensor& total = totals_[u];
    if (capture.edge < 0 || !total.defined()) continue;
    at::Tensor& result = results[capture.edge];
    if (total.scalar_type() != capture.tensor.scalar_type() && !total.is_sparse()) total = total.to(capture.tensor.scalar_type());
    result = result.defined() ? result + total : std::move(total);
    total.reset();
  }
  totals_.clear();
  proof.check_results(results);
  check_sound();
  for (const Held& h : held) fill(h);
  leave_room_for(results);
  statistics.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return results;
}

// Every gradient, and every value, has had each row once. Rows that a mask picks may be none, and an operator may leave no graph for these.
void Region::check_counts(const std::vector<Held>& held) {
  const bool ragged = std::any_of(values_.begin(), values_.end(), [](const Value& v) { return v.placement.ragged != nullptr; });
  for (size_t u = 0; u < reached_until_.size() && !ragged; ++u) {
    if (reached_until_[u] != 0 && reached_until_[u] != batch_) {
      broken(invariant::kSumsReachTheirCount, "a gradient has " + std::to_string(reached_until_[u]) + " rows of " + std::to_string(batch_));
    }
  }
  for (const Held& h : held) {
    if (h.until != batch_) broken(invariant::kRowsOnce, "a value has " + std::to_string(h.until) + " rows of " + std::to_string(batch_));
  }
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
void Region::backward_done() {
  bury_dead();
  for (size_t i : std::exchange(pass_, {})) {
    if (may_save_anything(instructions_[i].op.schema())) used_up_.insert(i);
  }
  std::vector<ValueId> used_up;
  bool more = false;
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
  if (more) return let_go_of_used_up(used_up);
  if (has_deferred()) {
    over_ = true;
    close();
    drop_first_frame();
    return;
  }
  release();
}

// What has its value is an ordinary tensor from now on; what only it was made from goes.
void Region::let_go_of_used_up(const std::vector<ValueId>& values) {
  for (ValueId id : values) {
    Value& value = values_[id];
    if (value.impl != nullptr) {
      const auto* meta = static_cast<torch::autograd::AutogradMeta*>(value.impl->autograd_meta());
      if (!groups_[value.group].materialised || !meta->hooks_.empty() || meta->retains_grad_) continue;  // check_hooks() counts hooks
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
// as they are where an operator stays whole. Such a tensor owns the region, and the two would live for ever; a backward pass frees what was saved, and a step that is refused has
// none. A region whose node is gone takes no part in any backward pass. So at a step's end it keeps the memory of what it reads, and no graph.
void Region::let_go_of_graphs() {
  if (released_ || node_ != nullptr) return;
  std::vector<at::Tensor> graphs;  // dropped last: what they had saved may end this region
  for (Capture& capture : captures_) {
    if (!capture.tensor.defined() || !has_node(capture.tensor)) continue;
    at::Tensor handle = handle_of(capture.tensor);
    graphs.push_back(std::exchange(capture.tensor, std::move(handle)));
    capture.requires_grad = false;
    capture.graph = nullptr;
    capture.edge = -1;
  }
  if (!graphs.empty()) session().log(KOILA_LOG_DEBUG, "a region without a node let go of " + std::to_string(graphs.size()) + " graphs at the end of a step");
}

void Region::release() {
  if (released_) return;
  released_ = true;
  open_ = false;
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
  }
  if (has_deferred()) {  // it should not come to this
    report_refusal(describe_out_of_memory("backward"), std::string("a check found it wrong (") + invariant::kHandedOutIsReal + "). Please report this as a bug of koila.", batch_);
    lose_handed_out();
  }
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (values_[id].impl != nullptr) deferred_registry().remove(values_[id].impl);
    values_[id].impl = nullptr;
  }
  for (Group& group : groups_) {
    if (group.storage) deferred_registry().remove_storage(group.storage.unsafeGetStorageImpl());
    group.storage = {};
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
