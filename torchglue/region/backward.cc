// Backward of a region: each micro-batch runs forward once more, and back.

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "torchglue/base/engine_queue.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/oom/events.h"
#include "torchglue/operators/saved.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/recovery.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

using torch::autograd::variable_list;

namespace {

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
      } else if (!capture.is_moved()) {
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

// The passes of one backward pass, whose roots have these gradients.
class Region::BackwardPass final : public MicroBatchLoop::Passes {
 public:
  BackwardPass(Region& region, const std::vector<Root>& roots, std::vector<Held>& held, const Schedule& plan, const std::vector<ValueId>& keep, Proof& proof)
      : region_(region), roots_(roots), held_(held), plan_(plan), keep_(keep), proof_(proof), changed_(region.captures_), written_(region),
        random_(std::any_of(region.values_.begin(), region.values_.end(), [](const Value& v) { return v.random; })) {
    for (size_t i = 0; i < region_.instructions_.size(); ++i) {
      const Instruction& in = region_.instructions_[i];
      if (in.in_place && !plan_.needed[i] && !in.outputs.empty() && in.outputs[0] != kNoValue) written_.groups.insert(region_.values_[in.outputs[0]].group);
    }
    region_.totals_.assign(region_.uses_.size(), {});
    region_.totals_until_.assign(region_.uses_.size(), 0);
    region_.reached_until_.assign(region_.uses_.size(), 0);
  }

  int64_t end_of(int64_t begin) override {
    int64_t end = stands_by(begin) ? region_.first_.rows.end : region_.end_of_pass(begin, region_.micro_batch_);
    const auto policy = session().sizes.policy_of(region_.batch_);
    if (policy != nullptr && !policy->knows_slope() && !random_) end = region_.with_another_size(begin, end);
    // A retry ends where the failed pass ended, so that sums which that pass reached are not made twice.
    for (int64_t until : region_.totals_until_) {
      if (until > begin) end = std::min(end, until);
    }
    for (int64_t until : region_.reached_until_) {
      if (until > begin) end = std::min(end, until);
    }
    for (const Held& h : held_) {
      if (h.until > begin) end = std::min(end, h.until);
    }
    return end;
  }

  void run(int64_t begin, int64_t end) override {
    Frame frame = fresh_frame({begin, end});
    StepSizes::Pass pass(session().sizes, region_.batch_, end - begin, begin == 0);
    if (stands_by(begin)) {
      frame = std::move(region_.first_);
      region_.first_ = Frame{{0, region_.lead()}, true, {}, {}, 0};
    } else {
      region_.drop_first_frame();
      const at::AutoGradMode grad(true);
      region_.ask_ahead({end, std::min(end + region_.micro_batch_, region_.batch_)}, plan_);
      region_.run(frame, region_.instructions_.size(), &plan_);
    }
    store(frame);
    back(frame);
    pass.finish();
  }

  // Other draws for part of the rows would give gradients of two different steps: with random operators all rows are made anew.
  bool depends_on_size(int64_t begin) override {
    const auto beyond = [&](int64_t until) { return until > begin; };
    return random_ && (std::any_of(region_.totals_until_.begin(), region_.totals_until_.end(), beyond) ||
                       std::any_of(held_.begin(), held_.end(), [&](const Held& h) { return beyond(h.until); }));
  }

  void start_over() override {
    std::fill(region_.totals_.begin(), region_.totals_.end(), at::Tensor());
    proof_.start_over();
    std::fill(region_.totals_until_.begin(), region_.totals_until_.end(), 0);
    std::fill(region_.reached_until_.begin(), region_.reached_until_.end(), 0);
    for (Held& h : held_) {
      h.until = 0;
      h.sum.reset();
    }
  }

  // Backward of one micro-batch, which has run forward with gradients.
  void back(Frame& frame) {
    torch::autograd::edge_list edges;
    variable_list parts;
    for (const auto& [value, gradient] : roots_) {
      const at::Tensor& local = frame.values[value];
      if (!local.defined()) region_.broken(invariant::kSumsReachTheirCount, "a gradient has come for a value that is not computed any more");
      if (!has_node(local)) continue;
      edges.push_back(torch::autograd::impl::gradient_edge(local));
      const Placement& placement = region_.values_[value].placement;
      const at::NoGradGuard no_grad;
      if (!placement.is_shard()) {
        parts.push_back(gradient.to(local.scalar_type()));
        continue;
      }
      const at::Tensor rows = slice_rows(gradient, placement, region_.batch_, frame.rows);
      parts.push_back(frame.watch != nullptr ? frame.watch->start_from(value, rows) : rows);
    }
    frame.values.clear();
    frame.uses.clear();
    if (edges.empty()) return;
    try {
      differentiate(edges, parts);
    } catch (const c10::Error& error) {
      // One row lies in memory without gaps where the full batch does not: what an operator saves of it may be a view of what has been written to, and a copy at the full batch. Two rows lie as all do.
      const bool as_plain = frame.rows.count() > 1 || region_.batch_ == 1;
      if (std::string_view(error.what_without_backtrace()).find("modified by an inplace operation") == std::string_view::npos) throw;
      if (std::any_of(region_.instructions_.begin(), region_.instructions_.end(), [](const Instruction& in) { return in.state.saves_by_hook; })) region_.refuse(kSavedByHookAndWritten);
      if (as_plain) throw;
      raise_what_two_rows_raise(frame.rows.begin);
      region_.refuse("a tensor that the step read was written to since, and a micro-batch of one row may need it for backward where the full batch has a copy.");
    }
  }

 private:
  Frame fresh_frame(Rows rows) {
    written_.counters.clear();
    return {rows, /*grad=*/true, {}, {}, 0, written_.groups.empty() ? nullptr : &written_};
  }

  void differentiate(const torch::autograd::edge_list& edges, const variable_list& parts) {
    for (c10::VariableVersion& counter : std::exchange(written_.counters, {})) counter.bump();
    changed_.begin();
    const auto forward_again = c10::make_scope_exit([&] { changed_.end(); });
    run_engine(edges, parts, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true, {});
  }

  // Nobody uses the gradients: the pass ends in an error in any case.
  void raise_what_two_rows_raise(int64_t row) {
    const int64_t begin = std::min(row, region_.batch_ - 2);
    start_over();
    std::fill(region_.reached_until_.begin(), region_.reached_until_.end(), begin);
    Frame frame = fresh_frame({begin, begin + 2});
    region_.drop_first_frame();
    const at::AutoGradMode grad(true);
    region_.run(frame, region_.instructions_.size(), &plan_);
    back(frame);
  }

  bool stands_by(int64_t begin) const {
    const Frame& first = region_.first_;
    return begin == 0 && written_.groups.empty() && first.next == region_.instructions_.size() &&
           std::all_of(held_.begin(), held_.end(), [&](const Held& h) { return region_.has_sums(first, h.origin); }) &&
           std::all_of(keep_.begin(), keep_.end(), [&](ValueId v) { return v < first.values.size() && first.values[v].defined(); });
  }

  // Values that are written to in place by an operator that no gradient needs, all of whose readers come before it. It is not run; what a node has saved
  // of such a value counts as written to all the same, as in the plain run (see Note [Writes that backward finds]).
  struct Written final : FrameWatch {
    explicit Written(const Region& of) : region(of) {}
    void after(size_t instruction, Frame& frame) override {
      for (ValueId id : region.instructions_[instruction].outputs) {
        if (id == kNoValue || id >= frame.values.size() || !frame.values[id].defined() || groups.count(region.values_[id].group) == 0) continue;
        counters.push_back(frame.values[id].unsafeGetTensorImpl()->version_counter());
      }
    }
    const Region& region;
    std::set<uint32_t> groups;
    std::vector<c10::VariableVersion> counters;  // of a micro-batch's parts
  };

  void store(const Frame& frame) {
    const at::NoGradGuard no_grad;
    proof_.add(frame);
    for (Held& h : held_) {
      if (region_.store_rows(h, frame)) proof_.stored(h.base, frame.rows, frame.values[h.base]);
    }
  }

  Region& region_;
  const std::vector<Root>& roots_;
  std::vector<Held>& held_;
  const Schedule& plan_;
  const std::vector<ValueId>& keep_;
  Proof& proof_;
  AsTheyAreNow changed_;
  Written written_;
  const bool random_;
};

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

// The engine adds up what several nodes say of one tensor, at full size; nobody could make the pass again that ran out there.
void Region::leave_room_for(const std::vector<at::Tensor>& gradients) {
  int64_t largest = 0;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined() && gradient.has_storage()) largest = std::max(largest, static_cast<int64_t>(gradient.nbytes()));
  }
  constexpr int64_t kWorthAsking = 1 << 20;  // a CUDA device is asked for what it has free
  if (largest < kWorthAsking && !device_.is_cpu()) return;
  const auto is_short = [&] {
    const auto available = available_bytes(device_);
    return available && *available < 3 * largest;
  };
  while (is_short() && (make_room() || boundaries().evict(device_))) {
  }
}

// The last pass of a step is made two, three quarters and the rest: the memory model wants passes of two sizes.
int64_t Region::with_another_size(int64_t begin, int64_t end) const {
  return begin > 0 && end == batch_ && end - begin >= 4 && end - begin > micro_batch_ / 2 ? begin + (end - begin) * 3 / 4 : end;
}

// What no micro-batch can give.
void Region::check_pass(const std::vector<at::Tensor>& gradients) const {
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined() && gradient.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched}))) {
      refuse("is_grads_batched=True asks for many backward passes at once.");
    }
  }
  check_saved();
}

// Notes which captures the engine wants the gradients of, and which operators the pass goes through. Throws PyTorch's error where one of them has let go of what it had saved.
void Region::begin_pass(const std::vector<ValueId>& roots) {
  auto* node = static_cast<RegionNode*>(node_);
  wanted_.assign(captures_.size(), 0);
  for (size_t c = 0; c < captures_.size(); ++c) {
    const int64_t edge = captures_[c].edge;
    wanted_[c] = edge >= 0 && node->task_should_compute_output(static_cast<size_t>(edge));
  }
  const auto path = on_the_way(differentiable_path(roots));
  TORCH_CHECK(std::none_of(path.begin(), path.end(), [&](size_t i) { return used_up_.count(i) > 0; }) && std::none_of(roots.begin(), roots.end(), [&](ValueId v) { return values_[v].used_up; }), kSecondTime);
  pass_ = {path.begin(), path.end()};
}

// The sums over all micro-batches, by edge, in the captures' types.
std::vector<at::Tensor> Region::take_totals() {
  std::vector<at::Tensor> results(static_cast<RegionNode*>(node_)->num_outputs());
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
  return results;
}

std::vector<at::Tensor> Region::backward(std::vector<at::Tensor>&& gradients) {
  TORCH_CHECK(!released_, kSecondTime);
  bury_dead();
  check_sound();
  check_pass(gradients);
  if (at::GradMode::is_enabled()) return differentiate(gradients);
  const RegionWork work;
  const AtWork at_work(*this);
  const Offload::MayFail may_fail;
  const auto started = std::chrono::steady_clock::now();

  std::vector<Root> roots;
  std::vector<ValueId> keep;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.emplace_back(static_cast<RegionNode*>(node_)->outputs()[i], gradients[i]);
    keep.push_back(roots.back().first);
  }
  const NoInterceptGuard no_intercept;
  begin_pass(keep);
  choose_size();
  // What the program holds gets its value on the way: after backward the parameters may change.
  std::vector<Held> held = to_be_held(held_deferred());
  make_full(held);
  for (const Held& h : held) keep.push_back(h.base);
  const Schedule plan = schedule(keep);
  check_captures(plan, /*in_backward=*/true);
  check_moved(plan);
  verify(plan);
  Proof proof(*this, plan, keep);
  proof_ = &proof;
  const auto pass_over = c10::make_scope_exit([this] {
    proof_ = nullptr;
    totals_.clear();
  });

  BackwardPass passes(*this, roots, held, plan, keep, proof);
  Recovery recovery(*this, Recovery::FirstFrame::kStandsBy);
  MicroBatchLoop(recovery).over(batch_, passes);
  ahead_.clear();
  side_.join();
  check_counts(held);
  proof.check_gradients();
  for (const Held& h : held) proof.check_value(h);
  proof.finish([&](Frame& frame) { passes.back(frame); });
  std::vector<at::Tensor> results = take_totals();
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

}  // namespace koila
