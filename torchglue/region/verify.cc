// KOILA_VERIFY: whether the placement rules told the truth.

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <sstream>

#include "torchglue/region/region.h"
#include "torchglue/rescue/events.h"
#include "torchglue/rescue/oom.h"
#include "torchglue/session.h"
#include "torchglue/stages/operators.h"
#include "torchglue/tls.h"

namespace koila {

namespace {

// Note [Verification]
// A rule claims that an operator gives micro-batches what their rows come to in the full batch. The full batch is what does not fit, so
// the claim is put to the test on a few rows: the operator is run on all of them together, and on each part by itself, with the same
// operands; outputs and gradients have to agree, side by side where they are Shard, summed where they are Partial. Parts of a Partial
// operand are any two tensors that sum up to it. Random operators are passed over, and koila's own that hands back what was found out from all
// rows. A call that was found good is not tested again.

struct Part {
  Rows rows;
  double share = 1;  // of a Partial operand
};

size_t combined(size_t seed, size_t value) { return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2)); }

double tolerance(at::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case at::kDouble:
      return 1e-8;
    case at::kFloat:
      return 1e-4;
    default:
      return 3e-2;
  }
}

bool is_number(at::ScalarType dtype) { return at::isFloatingType(dtype) || at::isComplexType(dtype); }

// Kernels choose their order of summation by shape, so a few roundings of the largest value are let through.
bool agree(const at::Tensor& together, const at::Tensor& parts) {
  if (together.sizes() != parts.sizes()) return false;
  if (together.numel() == 0 || together.layout() != at::kStrided) return true;
  if (!is_number(together.scalar_type())) return at::equal(together, parts);
  const auto wide = at::isComplexType(together.scalar_type()) ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = together.to(wide), b = parts.to(wide);
  const double bound = tolerance(together.scalar_type());
  const at::Tensor finite = a.isfinite();
  if (!at::equal(finite, b.isfinite())) return false;
  const at::Tensor difference = at::where(finite, a - b, at::zeros({}, a.options())).abs();
  const at::Tensor scale = at::where(finite, a, at::zeros({}, a.options())).abs();
  return difference.max().item<double>() <= bound * std::max(scale.max().item<double>(), 1e-6);
}

std::vector<at::Tensor> flattened(const torch::jit::Stack& results) {
  std::vector<at::Tensor> flat;
  for (const c10::IValue& result : results) {
    if (result.isTensor()) {
      flat.push_back(result.toTensor());
    } else {
      for (const c10::IValue& element : result.toListRef()) flat.push_back(element.toTensor());
    }
  }
  return flat;
}

}  // namespace

// What tells one call from another, as far as its rule goes.
size_t Region::signature_of(const Instruction& in) const {
  size_t key = std::hash<const void*>()(&in.op.schema());
  key = combined(key, static_cast<size_t>(batch_));
  const auto add = [&](const Placement& p, at::IntArrayRef sizes, at::ScalarType dtype) {
    key = combined(key, std::hash<std::string>()(to_string(p)));
    for (int64_t size : sizes) key = combined(key, static_cast<size_t>(size));
    key = combined(key, static_cast<size_t>(dtype));
  };
  for (const Argument& argument : in.arguments) {
    for (const Operand& o : argument.operands) {
      if (o.kind == Operand::Kind::kValue) add(values_[o.id].placement, values_[o.id].sizes, values_[o.id].dtype);
      if (o.kind == Operand::Kind::kUse) add(uses_[o.id].placement, captures_[uses_[o.id].capture].tensor.sizes(), captures_[uses_[o.id].capture].tensor.scalar_type());
    }
    if (!argument.operands.empty() || argument.constant.isGenerator() || argument.constant.isObject()) continue;
    std::ostringstream text;
    text << argument.constant;
    key = combined(key, std::hash<std::string>()(text.str()));
  }
  return key;
}

// Runs the operator for some of the rows that `all` has, on its values, and backward from `directions`; fills in the missing directions.
struct Region::Trial {
  std::vector<at::Tensor> outputs;                           // detached
  std::vector<std::pair<Operand, at::Tensor>> gradients;     // of its operands, once each
};

Region::Trial Region::attempt(const Instruction& in, Frame& all, Rows rows, double share, std::vector<at::Tensor>& directions) {
  Frame frame{rows, /*grad=*/true, {}, {}, 0};
  frame.values.resize(values_.size());
  frame.uses.resize(uses_.size());
  std::vector<std::pair<Operand, at::Tensor>> leaves;
  const auto stand_in = [&](const Operand& o, at::Tensor local, bool differentiable) {
    local = local.detach().clone();
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
    if (!outputs[i].defined() || in.outputs[i] == kNoValue || !outputs[i].requires_grad()) continue;
    if (fill) directions[i] = at::linspace(-1, 1, outputs[i].numel(), outputs[i].options().requires_grad(false).dtype(at::kDouble)).view(outputs[i].sizes()).cos().to(outputs[i].scalar_type());
    const Placement& p = values_[in.outputs[i]].placement;
    if (!directions[i].defined()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    parts.push_back(p.is_shard() ? slice_rows(directions[i], p, all.rows.count(), {rows.begin - all.rows.begin, rows.end - all.rows.begin}).contiguous() : directions[i]);
  }
  if (roots.empty() || leaves.empty()) return trial;
  for (const auto& [o, leaf] : leaves) inputs.push_back(torch::autograd::impl::gradient_edge(leaf));
  ++session().engine_depth;  // a pass of koila's own
  const auto depth = c10::make_scope_exit([] { --session().engine_depth; });
  const auto found = torch::autograd::Engine::get_default_engine().execute(roots, parts, /*keep_graph=*/false, /*create_graph=*/false,
                                                                           /*accumulate_grad=*/false, inputs);
  for (size_t i = 0; i < found.size(); ++i) {
    trial.gradients.emplace_back(leaves[i].first, found[i].defined() ? found[i].detach() : at::zeros_like(leaves[i].second.detach()));
  }
  return trial;
}

std::string Region::contradiction(const Instruction& in, Frame& all, Rows first, Rows second) {
  std::vector<at::Tensor> directions;
  const Trial together = attempt(in, all, all.rows, 1, directions);
  const Trial one = attempt(in, all, first, 0.25, directions), other = attempt(in, all, second, 0.75, directions);
  const auto joined = [&](const Placement& p, const at::Tensor& a, const at::Tensor& b, const at::Tensor& whole) {
    if (!p.is_shard()) return a + b;
    at::Tensor full = at::empty_like(whole);
    write_rows(full, p, all.rows.count(), {0, first.count()}, a);
    write_rows(full, p, all.rows.count(), {first.count(), all.rows.count()}, b);
    return full;
  };
  for (size_t i = 0; i < together.outputs.size(); ++i) {
    if (in.outputs[i] == kNoValue || !together.outputs[i].defined()) continue;
    const Placement& p = values_[in.outputs[i]].placement;
    if (!agree(together.outputs[i], joined(p, one.outputs[i], other.outputs[i], together.outputs[i]))) return "gives other values";
  }
  for (size_t i = 0; i < together.gradients.size() && one.gradients.size() == together.gradients.size() && other.gradients.size() == together.gradients.size(); ++i) {
    const auto& [o, whole] = together.gradients[i];
    const Placement& p = o.kind == Operand::Kind::kValue ? values_[o.id].placement : uses_[o.id].placement;
    const at::Tensor &a = one.gradients[i].second, &b = other.gradients[i].second;
    const bool same = p.is_partial() ? agree(whole, a) && agree(whole, b) : agree(whole, joined(p, a, b, whole));
    if (!same) return "gives another gradient";
  }
  return {};
}

void Region::verify(const Schedule& plan) {
  Session& s = session();
  if (!s.runtime->settings->verify || batch_ < 2) return;
  std::vector<size_t> untested;
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& in = instructions_[i];
    // A few rows of a ragged split are no split that a rule has spoken of.
    const auto ragged = [&](const Operand& o) { return (o.kind == Operand::Kind::kValue && values_[o.id].placement.ragged) || (o.kind == Operand::Kind::kUse && uses_[o.id].placement.ragged); };
    const bool uneven = std::any_of(in.outputs.begin(), in.outputs.end(), [&](ValueId v) { return v != kNoValue && values_[v].placement.ragged; }) ||
                        std::any_of(in.arguments.begin(), in.arguments.end(), [&](const Argument& a) { return std::any_of(a.operands.begin(), a.operands.end(), ragged); });
    const bool testable = !uneven && plan.needed[i] && !in.random && in.op.operator_name() != statistics_operator().operator_name();
    if (testable && s.verified.count(signature_of(in)) == 0) untested.push_back(i);
  }
  if (untested.empty()) return;

  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
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
      s.verified.insert(signature_of(instructions_[i]));
    }
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    s.log(KOILA_LOG_WARN, "KOILA_VERIFY: no room for " + std::to_string(most) + " rows together; this step is not verified");
    return;
  }
  if (wrong.empty()) return;
  const std::string& name = instructions_[at_fault].op.schema().name();
  const int device = device_number(device_);
  refuse_split_step({device, s.engine_depth > 0 ? KOILA_BACKWARD : KOILA_FORWARD, name.c_str(), 0, s.runtime->live_bytes(device)},
                    "KOILA_VERIFY found its placement rule wrong: " + name + " " + wrong + " for rows " + std::to_string(first.begin) + " to " +
                        std::to_string(second.end - 1) + " together than for " + std::to_string(first.begin) + " to " + std::to_string(first.end - 1) +
                        " and " + std::to_string(second.begin) + " apart. If it is not a rule of your own, please report this as a bug of koila.",
                    batch_);
}

}  // namespace koila
