#include "torchglue/plan/seeds.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "torchglue/op_traits.h"
#include "torchglue/placement/rule.h"

namespace koila {

namespace {

int64_t bytes_of(const TapeValue& v) {
  int64_t n = static_cast<int64_t>(c10::elementSize(v.dtype));
  for (int64_t size : v.sizes) n *= size;
  return n;
}

// An operator without a rule keeps the split of an input in an output of the same extent, often enough to be worth the try.
Placement guess(const TapeValue& out, const OpCall& call, int64_t batch) {
  for (const OpCall::Arg& arg : call.args()) {
    for (const TensorSpec& t : arg.tensors) {
      const Placement& p = t.placement;
      if (p.is_shard() && p.dim < static_cast<int64_t>(out.sizes.size()) && out.sizes[p.dim] == p.extent(batch)) return p;
    }
  }
  return Placement::replicate();
}

}  // namespace

OpCall call_on_tape(const Tape& tape, const TapeOp& op, int64_t batch, const std::function<Placement(TapeValueId)>& placement) {
  const OpTraits& traits = op_traits(op.op);
  OpCall call(op.op.schema(), batch);
  call.args().resize(op.args.size());
  for (size_t i = 0; i < op.args.size(); ++i) {
    OpCall::Arg& arg = call.args()[i];
    arg.is_tensor = traits.kinds[i] == ArgumentKind::kTensor;
    arg.is_tensor_list = traits.kinds[i] == ArgumentKind::kTensorList;
    if (arg.is_tensor) {
      arg.tensors.resize(1);
    } else if (arg.is_tensor_list) {
      arg.tensors.resize(op.args[i].isInt() ? std::max<int64_t>(0, op.args[i].toInt()) : 0);
    } else {
      arg.value = op.args[i];
    }
  }
  for (const TapeRef& ref : op.refs) {
    const TapeValue& value = tape.values()[ref.value];
    TensorSpec& spec = call.args()[ref.arg].tensors[ref.element < 0 ? 0 : ref.element];
    spec.defined = true;
    spec.placement = placement(ref.value);
    spec.sizes = value.sizes;
    spec.dtype = value.dtype;
  }
  return call;
}

Plan infer_placements(const Tape& tape, int64_t batch, std::vector<Seed> seeds) {
  Plan plan;
  plan.batch = batch;
  plan.placements.resize(tape.values().size());
  for (const Seed& seed : seeds) plan.placements[seed.value] = seed.placement;
  plan.seeds = std::move(seeds);
  const auto placement = [&](TapeValueId v) { return plan.placements[v]; };
  const auto is_split = [&](const TapeOp& op) {
    return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) { return !plan.placements[r.value].is_replicate(); });
  };
  // Groups that an operator without a rule writes to in place (labels that are masked): no gradient goes through them, so they stay
  // what they are, whole, and are sliced where they are read.
  ska::flat_hash_set<uint32_t> whole;
  for (const TapeOp& op : tape.ops()) {
    if (!op.in_place || op.outputs.empty() || op.outputs[0] == kNoTapeValue) continue;
    const TapeValue& written = tape.values()[op.outputs[0]];
    if (!written.requires_grad && op_traits(op.op).rule == nullptr) whole.insert(written.group);
  }
  for (const TapeOp& op : tape.ops()) {
    if (!is_split(op)) continue;
    if (!op.outputs.empty() && op.outputs[0] != kNoTapeValue && whole.count(tape.values()[op.outputs[0]].group)) continue;
    const OpTraits& traits = op_traits(op.op);
    OpCall call = call_on_tape(tape, op, batch, placement);
    const Verdict verdict = traits.rule != nullptr ? traits.rule->fn(call) : Verdict::kNo;
    if (verdict == Verdict::kReal) continue;
    const bool list = op.op.schema().returns().size() == 1 && op.outputs.size() > 1;
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const TapeValueId out = op.outputs[i];
      if (out == kNoTapeValue) continue;
      const TapeValue& value = tape.values()[out];
      if (verdict == Verdict::kLocal) {
        const size_t number = list ? 0 : i;
        plan.placements[out] = number < call.outputs().size() ? call.outputs()[number] : Placement::replicate();
        if (!plan.placements[out].is_replicate() && !value.is_view && !op.in_place) plan.bytes += bytes_of(value);
      } else if (!value.is_view) {
        plan.placements[out] = guess(value, call, batch);
      }
    }
  }
  if (tape.pending() != nullptr) plan.reaches_pending = is_split(*tape.pending());
  return plan;
}

std::optional<Plan> choose_seeds(const Tape& tape) {
  const auto& values = tape.values();
  std::vector<TapeValueId> candidates;
  for (TapeValueId v = 0; v < values.size(); ++v) {
    const TapeValue& value = values[v];
    if (value.is_capture() && !value.requires_grad && !value.sizes.empty() && value.lock().defined()) candidates.push_back(v);
  }
  std::optional<Plan> best;
  const auto consider = [&](TapeValueId v) {
    const TapeValue& value = values[v];
    for (size_t dim = 0; dim < value.sizes.size(); ++dim) {
      if (value.sizes[dim] < 2) continue;
      Plan plan = infer_placements(tape, value.sizes[dim], {{v, Placement::shard(static_cast<int64_t>(dim))}});
      if (plan.bytes == 0 && !plan.reaches_pending) continue;
      if (!best || std::make_pair(plan.bytes, plan.reaches_pending) > std::make_pair(best->bytes, best->reaches_pending)) best = std::move(plan);
    }
  };
  for (TapeValueId v : candidates) consider(v);
  if (!best) {  // inputs that require grad
    for (TapeValueId v = 0; v < values.size(); ++v) {
      const TapeValue& value = values[v];
      if (value.is_capture() && value.requires_grad && !value.sizes.empty() && value.lock().defined()) {
        candidates.push_back(v);
        consider(v);
      }
    }
  }
  if (!best) return std::nullopt;
  for (TapeValueId v : candidates) {
    if (!best->placements[v].is_replicate()) continue;
    for (size_t dim = 0; dim < values[v].sizes.size(); ++dim) {
      const int64_t size = values[v].sizes[dim];
      if (size < best->batch || size % best->batch != 0) continue;
      std::vector<Seed> seeds = best->seeds;
      seeds.push_back({v, Placement::shard(static_cast<int64_t>(dim), 1, size / best->batch)});
      Plan plan = infer_placements(tape, best->batch, std::move(seeds));
      if (plan.bytes > best->bytes || (plan.bytes == best->bytes && plan.reaches_pending && !best->reaches_pending)) {
        best = std::move(plan);
        break;
      }
    }
  }
  return best;
}

}  // namespace koila
