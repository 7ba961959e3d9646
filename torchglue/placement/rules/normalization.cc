// Normalisation by statistics of each row. Batch statistics mix rows: batch norm in training never splits here.
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict trailing(OpCall&);       // (input, normalized_shape, ...): over the last dimensions
Verdict per_sample(OpCall&);     // group_norm: over channels and space of each sample
Verdict instance_norm(OpCall&);  // over space of each sample
Verdict batch_norm(OpCall&);     // with running statistics: pointwise

const RegisterRules kTable{
    {"aten::batch_norm", batch_norm},
    {"aten::group_norm", per_sample},
    {"aten::instance_norm", instance_norm},
    {"aten::layer_norm", trailing},
    {"aten::rms_norm", trailing},
};

bool only_input_is_shard(const OpCall& call) { return call.tensor(0).placement.is_shard() && others_replicate(call, {0}); }

Verdict trailing(OpCall& call) {
  const TensorSpec& input = call.tensor(0);
  const auto shape = call.integers(1);
  if (!only_input_is_shard(call) || !shape) return Verdict::kNo;
  if (input.placement.dim >= input.dim() - static_cast<int64_t>(shape->size())) return Verdict::kNo;
  return local(call, input.placement);
}

Verdict per_sample(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  return only_input_is_shard(call) && p.dim == 0 ? local(call, p) : Verdict::kNo;
}

Verdict instance_norm(OpCall& call) {
  // Running statistics are written even when they are only read from.
  if (!call.none(call.find("running_mean")) || !call.none(call.find("running_var"))) return Verdict::kNo;
  return per_sample(call);
}

Verdict batch_norm(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  if (!only_input_is_shard(call) || p.dim == 1) return Verdict::kNo;
  if (call.boolean(call.find("training"), true)) return Verdict::kNo;
  if (call.none(call.find("running_mean")) || call.none(call.find("running_var"))) return Verdict::kNo;
  return local(call, p);
}

}  // namespace
}  // namespace koila
