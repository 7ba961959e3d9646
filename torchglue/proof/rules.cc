// KOILA_VERIFY: whether the placement rules told the truth.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "torchglue/base/engine_queue.h"
#include "torchglue/base/own_pass.h"
#include "torchglue/base/tls.h"
#include "torchglue/oom/error_text.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/proof/fingerprint.h"
#include "torchglue/proof/key.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/region.h"
#include "torchglue/statistics/operators.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// Note [Verification]
// A rule claims that an operator gives micro-batches what their rows come to in the full batch. The full batch is what does not fit, so
// the claim is put to the test on a few rows: the operator is run on all of them together, and on each part by itself, with the same
// operands; outputs and gradients have to agree, side by side where they are Shard, summed where they are Partial. Parts of a Partial
// operand are any two tensors that sum up to it. Random operators are passed over, and koila's own that hands back what was found out from all
// rows. A call that was found good is not tested again, nor is one like it but for its sizes when a few of these were. What is no more than rounding is told from what is as
// in Note [Proof]: the operator is run on operands that are shaken, by roundings of the least precise type that it has to do with. That may be autocast's: single precision that is
// cast to bfloat16 on the way shows no roundings of its own. Backward runs without autocast, whatever the call that brought the test about runs in: that is how programs call it.

bool is_number(at::ScalarType dtype) { return at::isFloatingType(dtype) || at::isComplexType(dtype); }

at::Tensor shaken(const at::Tensor& t, double phase, double coarsest) { return (t.contiguous() * roundings(t, phase, coarsest)).to(t.scalar_type()); }

// One rounding of the type that autocast has the operator, or what it is made of, compute in; 0: it has no part in it.
double autocast_rounding(const c10::OperatorHandle& op, const OpState& state, at::DeviceType device) {
  if (!at::autocast::is_autocast_available(device)) return 0;
  const c10::DispatchKey key = at::autocast::get_autocast_dispatch_key_from_device_type(device);
  if (!state.included.has(key) && state.excluded.has(key)) return 0;
  const bool by_itself = op.schema().name().starts_with("aten::") && !op.hasKernelForDispatchKey(key) && !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  if (by_itself) return 0;
  return rounding(device == at::kCPU ? state.autocast_cpu : device == at::kCUDA ? state.autocast_cuda : at::kBFloat16, device);
}

void hash_constant(size_t& key, const c10::IValue& value) {
  key = combined(key, static_cast<size_t>(value.isList()));
  if (value.isInt()) key = combined(key, static_cast<size_t>(value.toInt()));
  else if (value.isDouble()) key = combined(key, std::hash<double>()(value.toDouble()));
  else if (value.isBool()) key = combined(key, value.toBool() ? 2 : 3);
  else if (value.isString()) key = combined(key, std::hash<std::string>()(value.toStringRef()));
  else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) hash_constant(key, element);
  }
}

std::vector<at::Tensor> flattened(const torch::jit::Stack& results) {
  std::vector<at::Tensor> flat;
  for_each_local(results, [&](const at::Tensor& t) { flat.push_back(t); });
  return flat;
}

}  // namespace

// What tells one call from another, as far as its rule goes. `sizes` false: but for its sizes and its numbers.
size_t Region::signature_of(const Instruction& in, bool sizes) const {
  size_t key = std::hash<const void*>()(&in.op.schema());
  key = combined(key, static_cast<size_t>(batch_));
  key = combined(key, static_cast<size_t>(autocast_rounding(in.op, in.state, device_.type()) * 0x1p52));
  const auto add = [&](const Placement& p, at::IntArrayRef of, at::ScalarType dtype) {
    key = combined(key, static_cast<size_t>(p.kind) * 64 + static_cast<size_t>(p.dim));
    key = combined(key, static_cast<size_t>(dtype) * 64 + of.size());
    if (!sizes) return;
    key = combined(key, static_cast<size_t>(p.outer * 1000003 + p.inner));
    for (int64_t size : of) key = combined(key, static_cast<size_t>(size));
  };
  for (const Argument& argument : in.arguments) {
    for (const Operand& o : argument.operands) {
      if (o.kind == Operand::Kind::kValue) add(values_[o.id].placement, values_[o.id].sizes, values_[o.id].dtype);
      if (o.kind == Operand::Kind::kUse) add(uses_[o.id].placement, captures_[uses_[o.id].capture].as_read().sizes(), captures_[uses_[o.id].capture].tensor.scalar_type());
    }
    if (sizes && argument.operands.empty()) hash_constant(key, argument.constant);
  }
  return key;
}

// Runs the operator for some of the rows that `all` has, on its values, and backward from `directions`; fills in the missing directions.
struct Region::Trial {
  std::vector<at::Tensor> outputs;                           // detached
  std::vector<std::pair<Operand, at::Tensor>> gradients;     // of its operands, once each
};

Region::Trial Region::attempt(const Instruction& in, Frame& all, Rows rows, double share, std::vector<at::Tensor>& directions, double phase) {
  Frame frame{rows, /*grad=*/true, {}, {}, 0};
  frame.values.resize(values_.size());
  frame.uses.resize(uses_.size());
  std::vector<std::pair<Operand, at::Tensor>> leaves;
  const double strength = phase > 0 ? coarsest(in) : 0;
  const auto stand_in = [&](const Operand& o, at::Tensor local, bool differentiable) {
    local = local.detach();
    if (phase > 0 && is_number(local.scalar_type()) && local.numel() > 0) {
      local = shaken(local, phase, strength);
    } else if (in.in_place) {
      local = local.clone();
    }
    if (differentiable && is_number(local.scalar_type())) {
      local.set_requires_grad(true);
      leaves.emplace_back(o, local);
      const at::AutoGradMode grad(true);
      if (in.in_place) local = local.clone();  // a leaf may not be written to
    }
    return local;
  };
  for (const Argument& argument : in.arguments) {
    for (const Operand& o : argument.operands) {
      if (o.kind == Operand::Kind::kValue && !frame.values[o.id].defined()) {
        at::Tensor local = all.values[o.id];
        const Placement& p = values_[o.id].placement;
        if (p.is_shard()) local = slice_rows(local.detach(), p, all.rows.count(), {rows.begin - all.rows.begin, rows.end - all.rows.begin});
        if (p.is_partial() && share != 1) {
          // Of a count, whole numbers.
          const at::Tensor first = is_number(local.scalar_type()) ? local.detach() * 0.25 : local.detach();
          local = is_number(local.scalar_type()) ? (share < 0.5 ? first : local.detach() - first) : (share < 0.5 ? first : at::zeros_like(local));
        }
        frame.values[o.id] = stand_in(o, local, values_[o.id].requires_grad);
      } else if (o.kind == Operand::Kind::kUse && !frame.uses[o.id].defined()) {
        frame.uses[o.id] = stand_in(o, slice_of_use(o.id, rows), captures_[uses_[o.id].capture].requires_grad);
      }
    }
  }
  torch::jit::Stack results;
  {
    const at::AutoGradMode grad(true);
    results = call_instruction(frame, in);
  }
  Trial trial;
  const std::vector<at::Tensor> outputs = flattened(results);
  torch::autograd::edge_list roots, inputs;
  torch::autograd::variable_list parts;
  const bool fill = directions.empty();
  if (fill) directions.resize(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    trial.outputs.push_back(outputs[i].defined() ? outputs[i].detach() : outputs[i]);
    if (!outputs[i].defined() || in.outputs[i] == kNoValue || !has_node(outputs[i])) continue;
    if (fill) directions[i] = at::linspace(-1, 1, outputs[i].numel(), outputs[i].options().requires_grad(false).dtype(at::kDouble)).view(outputs[i].sizes()).cos().to(outputs[i].scalar_type());
    const Placement& p = values_[in.outputs[i]].placement;
    if (!directions[i].defined()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    parts.push_back(p.is_shard() ? slice_rows(directions[i], p, all.rows.count(), {rows.begin - all.rows.begin, rows.end - all.rows.begin}).contiguous() : directions[i]);
  }
  if (roots.empty() || leaves.empty()) return trial;
  for (const auto& [o, leaf] : leaves) inputs.push_back(torch::autograd::impl::gradient_edge(leaf));
  const OwnPass own;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto found = run_engine(roots, parts, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, inputs);
  for (size_t i = 0; i < found.size(); ++i) {
    trial.gradients.emplace_back(leaves[i].first, found[i].defined() ? found[i].detach() : at::zeros_like(leaves[i].second.detach()));
  }
  return trial;
}

// The fingerprints of what a trial gave: of its outputs first, then of its gradients; `outputs` is set to the number of the former. `rows`: which of the `all` rows it ran.
// An entry is empty where a tensor has no fingerprint.
std::vector<std::optional<Fingerprint>> Region::prints(const Instruction& in, const Trial& trial, int64_t all, RowRange rows, size_t& outputs) const {
  std::vector<std::optional<Fingerprint>> found;
  const auto add = [&](const at::Tensor& t, const Placement& p) {
    auto f = t.defined() ? fingerprint(t, p, all, rows, rows) : std::nullopt;
    if (f && !p.is_shard()) f = f->of_sum();
    found.push_back(f);
  };
  for (size_t i = 0; i < trial.outputs.size(); ++i) add(in.outputs[i] == kNoValue ? at::Tensor() : trial.outputs[i], in.outputs[i] == kNoValue ? Placement() : values_[in.outputs[i]].placement);
  outputs = found.size();
  for (const auto& [o, gradient] : trial.gradients) add(gradient, o.kind == Operand::Kind::kValue ? values_[o.id].placement : uses_[o.id].placement);
  return found;
}

std::string Region::contradiction(const Instruction& in, Frame& all, Rows first, Rows second) {
  std::vector<at::Tensor> directions;
  const int64_t count = all.rows.count(), middle = first.count();
  size_t outputs = 0;
  const Trial together = attempt(in, all, all.rows, 1, directions, 0);
  const Trial one = attempt(in, all, first, 0.25, directions, 0), other = attempt(in, all, second, 0.75, directions, 0);
  for (size_t i = 0; i < together.outputs.size(); ++i) {
    if (in.outputs[i] == kNoValue || !together.outputs[i].defined() || values_[in.outputs[i]].placement.is_shard()) continue;
    if (one.outputs[i].sizes() != together.outputs[i].sizes() || other.outputs[i].sizes() != together.outputs[i].sizes()) return "gives other values";
  }
  const auto whole = prints(in, together, count, {0, count}, outputs);
  const auto a = prints(in, one, count, {0, middle}, outputs), b = prints(in, other, count, {middle, count}, outputs);
  std::vector<Fingerprint> parts(whole.size());
  std::vector<size_t> suspects;
  for (size_t i = 0; i < whole.size() && a.size() == whole.size() && b.size() == whole.size(); ++i) {
    if (!whole[i] || !a[i] || !b[i]) continue;
    // Every summand of a Partial gets the sum's gradient.
    const Operand* o = i < outputs ? nullptr : &together.gradients[i - outputs].first;
    const bool alike = o != nullptr && (o->kind == Operand::Kind::kValue ? values_[o->id].placement : uses_[o->id].placement).is_partial();
    parts[i] = *a[i];
    if (alike) {
      if (distance(*whole[i], *b[i]) > distance(*whole[i], *a[i])) parts[i] = *b[i];
    } else {
      parts[i] += *b[i];
      if (a[i]->entries == 0) parts[i] = parts[i].of_sum();
    }
    const auto& t = i < outputs ? together.outputs[i] : together.gradients[i - outputs].second;
    const double apart = distance(*whole[i], parts[i]), bound = std::max(1e-12, tolerance(std::max(coarsest(in), rounding(t.scalar_type(), device_.type()))));
    // Summands may cancel: their own length is the measure.
    const bool is_close = !alike && same_shape(*whole[i], parts[i]) && difference(*whole[i], parts[i]) <= bound * (a[i]->length() + b[i]->length());
    if (apart > bound && !is_close) suspects.push_back(i);
  }
  if (suspects.empty()) return {};
  std::vector<double> noise(whole.size(), 0);
  std::vector<char> same(whole.size(), 1);
  for (double phase : {1.0, 2.3, 3.7}) {
    const auto other_whole = prints(in, attempt(in, all, all.rows, 1, directions, phase), count, {0, count}, outputs);
    for (size_t i : suspects) {
      if (!other_whole[i]) continue;
      noise[i] = std::max(noise[i], difference(*whole[i], *other_whole[i]));
      same[i] &= same_shape(*whole[i], *other_whole[i]);
    }
  }
  for (size_t i : suspects) {
    const bool real = same[i] && !same_shape(*whole[i], parts[i]);
    if (real || difference(*whole[i], parts[i]) > 8 * noise[i]) return i < outputs ? "gives other values" : "gives another gradient";
  }
  return {};
}

// One rounding of the least precise type that the operator has to do with.
double Region::coarsest(const Instruction& in) const {
  double most = autocast_rounding(in.op, in.state, device_.type());
  for (const Argument& argument : in.arguments) {
    for (const Operand& o : argument.operands) {
      if (o.kind == Operand::Kind::kValue) most = std::max(most, rounding(values_[o.id].dtype, device_.type()));
      if (o.kind == Operand::Kind::kUse) most = std::max(most, rounding(captures_[uses_[o.id].capture].tensor.scalar_type(), device_.type()));
    }
  }
  for (ValueId out : in.outputs) {
    if (out != kNoValue) most = std::max(most, rounding(values_[out].dtype, device_.type()));
  }
  return most;
}

void Region::verify(const Schedule& plan) {
  Session& s = session();
  if (!s.verifies() || batch_ < 2 || no_room_for_proof_) return;
  constexpr int kShapesAtMost = 4;  // of calls that differ in their sizes alone
  std::vector<size_t> untested;
  std::vector<size_t> keys(instructions_.size(), 0);
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& in = instructions_[i];
    // A few rows of a ragged split are no split that a rule has spoken of.
    const auto ragged = [&](const Operand& o) { return (o.kind == Operand::Kind::kValue && values_[o.id].placement.ragged) || (o.kind == Operand::Kind::kUse && uses_[o.id].placement.ragged); };
    const bool uneven = std::any_of(in.outputs.begin(), in.outputs.end(), [&](ValueId v) { return v != kNoValue && values_[v].placement.ragged; }) ||
                        std::any_of(in.arguments.begin(), in.arguments.end(), [&](const Argument& a) { return std::any_of(a.operands.begin(), a.operands.end(), ragged); });
    const bool testable = !uneven && plan.needed[i] && !in.random && !in.makes_fresh_memory() && !in.gradient && in.op.operator_name() != statistics_operator().operator_name();
    if (!testable) continue;
    keys[i] = signature_of(in, /*sizes=*/true);
    const bool proven = s.proven.calls.count(keys[i]) > 0;
    if (proven && !s.verifies_always()) continue;
    if (!proven && !s.verifies_always() && ++s.proven.shapes[signature_of(in, /*sizes=*/false)] > kShapesAtMost) {
      s.proven.calls.insert(keys[i]);
      continue;
    }
    if (std::none_of(untested.begin(), untested.end(), [&](size_t other) { return keys[other] == keys[i]; })) untested.push_back(i);
  }
  if (untested.empty()) return;

  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const Offload::MayFail may_fail;
  const StepSizes::Aside aside(s.sizes, device_);
  // Somewhere in the batch, parts of unequal size where there is room.
  const int64_t most = batch_ >= 3 && micro_batch_ >= 3 ? 3 : 2;
  const int64_t begin = (batch_ - most) / 2;
  const Rows first{begin, begin + most - 1}, second{begin + most - 1, begin + most};
  Frame all{{first.begin, second.end}, /*grad=*/false, {}, {}, 0};
  std::string wrong;
  size_t at_fault = 0;
  try {
    for (size_t i : untested) {
      run(all, i, &plan);
      all.values.resize(values_.size());
      wrong = contradiction(instructions_[i], all, first, second);
      at_fault = i;
      if (!wrong.empty()) break;
      s.proven.calls.insert(keys[i]);
    }
  } catch (const std::exception& error) {  // an operator of the program's own may throw anything
    if (is_python_interrupt(error)) throw;
    forget_python_error(error);
    take_allocator_ran_out();  // nobody's out-of-memory but the proof's
    no_room_for_proof_ = true;
    s.log(KOILA_LOG_DEBUG, "the rules of this step are not put to the test on " + std::to_string(most) + " rows: " + error_text(error));
    return;
  }
  if (wrong.empty()) return;
  condemn({"rule", at_fault, wrong + " for rows " + std::to_string(first.begin) + " to " + std::to_string(second.end - 1) + " together than for " + std::to_string(first.begin) + " to " +
                                 std::to_string(first.end - 1) + " and " + std::to_string(second.begin) + " apart", {}});
}

}  // namespace koila
