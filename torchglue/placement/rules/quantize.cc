// Fake quantisation, as training for few bits has it: each entry by itself, by a scale for all or for each channel. What moves a range on its way (_fused_moving_avg_obs_fq_helper) looks at all rows.
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict per_tensor(OpCall&);   // (self, scale, zero_point, ...): numbers or tensors
Verdict per_channel(OpCall&);  // (self, scale [C], zero_point [C], axis, ...)

const RegisterRules kTable{
    {"aten::_fake_quantize_learnable_per_channel_affine", per_channel},
    {"aten::_fake_quantize_learnable_per_tensor_affine", per_tensor},
    {"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", per_tensor},
    {"aten::fake_quantize_per_channel_affine", per_channel},
    {"aten::fake_quantize_per_channel_affine_cachemask", per_channel},
    {"aten::fake_quantize_per_tensor_affine", per_tensor},
    {"aten::fake_quantize_per_tensor_affine_cachemask", per_tensor},
};

Verdict per_tensor(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  return p.is_shard() && others_replicate(call, {0}) ? local(call, p) : Verdict::kNo;
}

Verdict per_channel(OpCall& call) {
  const auto axis = wrap_dim(call.integer(call.find("axis")), call.tensor(0).dim());
  return axis && call.tensor(0).placement.dim != *axis ? per_tensor(call) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
