// Normalisation by statistics of each row, and by those of the batch, which need every row first.
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict trailing(OpCall&);       // (input, normalized_shape, ...): over the last dimensions
Verdict per_sample(OpCall&);     // group_norm: over channels and space of each sample
Verdict instance_norm(OpCall&);  // over space of each sample
Verdict by_sizes(OpCall&);       // (input, weight, bias, N, C, HxW, group, eps): the same, with the sizes as literals
Verdict given(OpCall&);          // (input, weight, bias, mean, invstd or var, ...): pointwise, by statistics that are there
Verdict weight_norm(OpCall&);    // (v, g, dim): each slice of a weight along `dim` by itself
Verdict batch_norm(OpCall&);     // with running statistics: pointwise; with the batch's: over all but dimension 1
Verdict normalise(OpCall&);      // batch norm once its statistics are known

const RegisterRules kTable{
    {"aten::_fused_rms_norm", trailing},
    {"aten::_native_batch_norm_legit_no_training", given},
    {"aten::_weight_norm_interface", weight_norm},
    {"aten::batch_norm", batch_norm},
    {"aten::batch_norm_elemt", given},
    {"aten::group_norm", per_sample},
    {"aten::instance_norm", instance_norm},
    {"aten::layer_norm", trailing},
    {"aten::native_batch_norm", given},
    {"aten::native_group_norm", by_sizes},
    {"aten::native_layer_norm", trailing},
    {"aten::rms_norm", trailing},
    {"koila::normalise", normalise},
};

const RegisterRagged kRagged{trailing};

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

Verdict by_sizes(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  if (!only_input_is_shard(call) || p.dim != 0) return Verdict::kNo;
  call.scale_literal(call.find("N"), OpCall::kWhole, p.outer * p.inner);
  return local(call, p);
}

Verdict given(OpCall& call) {
  const TensorSpec& input = call.tensor(0);
  if (!only_input_is_shard(call) || input.dim() < 2 || input.placement.dim == 1 || call.boolean(call.find("training"))) return Verdict::kNo;
  for (const char* name : {"running_mean", "running_var"}) {
    if (const int arg = call.find(name); arg >= 0 && call.none(arg)) return Verdict::kNo;  // then those of the batch
  }
  call.output(0, input.placement);
  // What training saves of the batch's statistics is empty, or of the given ones: the same for any rows.
  for (int i = 1; i < static_cast<int>(call.schema().returns().size()); ++i) call.leave_aside(i);
  return Verdict::kLocal;
}

Verdict weight_norm(OpCall& call) {
  const TensorSpec &v = call.tensor(0), &g = call.tensor(1);
  const auto dim = wrap_dim(call.integer(call.find("dim")), v.dim());
  const Placement p = call.first_split()->placement;
  if (!dim || !p.is_shard() || p.dim != *dim || g.dim() != v.dim() || !call.require({0}, p) || !call.require({1}, p)) return Verdict::kNo;
  return local(call, p);
}

Verdict instance_norm(OpCall& call) {
  if (call.none(call.find("running_mean")) && call.none(call.find("running_var"))) return per_sample(call);
  // Running statistics are written even when they are only read from.
  if (!call.boolean(call.find("use_input_stats")) || per_sample(call) != Verdict::kLocal) return Verdict::kNo;
  return Verdict::kStaged;
}

Verdict batch_norm(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  if (!only_input_is_shard(call) || p.dim == 1 || call.tensor(0).dim() < 2) return Verdict::kNo;
  local(call, p);
  if (call.boolean(call.find("training"), true)) return c10::isFloatingType(call.tensor(0).dtype) ? Verdict::kStaged : Verdict::kNo;
  return call.none(call.find("running_mean")) || call.none(call.find("running_var")) ? Verdict::kNo : Verdict::kLocal;
}

Verdict normalise(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  return only_input_is_shard(call) && p.dim != 1 ? local(call, p) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
