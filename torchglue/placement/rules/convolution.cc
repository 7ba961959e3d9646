// Convolution, pooling, resampling: every sample by itself, and most of them every channel.
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict convolution(OpCall&);   // (input, weight, bias, ...): [N, C, ...]
template <int N>
Verdict planes(OpCall&);        // maps planes of N dimensions; whatever stands before them is kept
Verdict planes_of_any(OpCall&); // [N, C, ...] where the call does not say how many dimensions a plane has
Verdict samples(OpCall&);       // first argument [N, ...], every other tensor goes along with N
template <int N>
Verdict samples_of(OpCall&);    // the same, where the first argument has N dimensions: with one less it is a sample alone
Verdict grid_size(OpCall&);     // (theta [N, ...], size [N, C, ...])
template <int N>
Verdict batched(OpCall&);       // one tensor with N dimensions, batch first

const RegisterRules kTable{
    {"aten::_convolution", convolution},  // what torch.jit.trace writes down
    {"aten::_convolution_mode", convolution},
    {"aten::conv1d", convolution},
    {"aten::conv2d", convolution},
    {"aten::conv3d", convolution},
    {"aten::conv_transpose1d", convolution},
    {"aten::conv_transpose2d", convolution},
    {"aten::conv_transpose3d", convolution},
    {"aten::convolution", convolution},

    {"aten::adaptive_avg_pool1d", planes<1>},
    {"aten::adaptive_avg_pool2d", planes<2>},
    {"aten::adaptive_avg_pool3d", planes<3>},
    {"aten::adaptive_max_pool1d", planes<1>},
    {"aten::adaptive_max_pool2d", planes<2>},
    {"aten::adaptive_max_pool3d", planes<3>},
    {"aten::avg_pool1d", planes<1>},
    {"aten::avg_pool2d", planes<2>},
    {"aten::avg_pool3d", planes<3>},
    {"aten::max_pool1d", planes<1>},
    {"aten::max_pool1d_with_indices", planes<1>},
    {"aten::max_pool2d", planes<2>},
    {"aten::max_pool2d_with_indices", planes<2>},
    {"aten::max_pool3d", planes<3>},
    {"aten::max_pool3d_with_indices", planes<3>},
    {"aten::max_unpool2d", samples_of<4>},
    {"aten::max_unpool3d", samples_of<5>},

    {"aten::_upsample_bicubic2d_aa", planes_of_any},
    {"aten::_upsample_bilinear2d_aa", planes_of_any},
    {"aten::_upsample_lanczos2d_aa", planes_of_any},
    {"aten::_upsample_nearest_exact1d", planes_of_any},
    {"aten::_upsample_nearest_exact2d", planes_of_any},
    {"aten::_upsample_nearest_exact3d", planes_of_any},
    {"aten::upsample_bicubic2d", planes_of_any},
    {"aten::upsample_bilinear2d", planes_of_any},
    {"aten::upsample_linear1d", planes_of_any},
    {"aten::upsample_nearest1d", planes_of_any},
    {"aten::upsample_nearest2d", planes_of_any},
    {"aten::upsample_nearest3d", planes_of_any},
    {"aten::upsample_trilinear3d", planes_of_any},

    {"aten::affine_grid_generator", grid_size},
    {"aten::col2im", batched<3>},
    {"aten::fractional_max_pool2d", samples_of<4>},
    {"aten::fractional_max_pool3d", samples_of<5>},
    {"aten::grid_sampler", samples},
    {"aten::grid_sampler_2d", samples},
    {"aten::grid_sampler_3d", samples},
    {"aten::im2col", batched<4>},
};

Verdict first_alone(OpCall& call, int64_t last_dim) {
  const TensorSpec& self = call.tensor(0);
  if (!self.placement.is_shard() || !others_replicate(call, {0}) || self.placement.dim > last_dim) return Verdict::kNo;
  return local(call, self.placement);
}

Verdict convolution(OpCall& call) {
  const TensorSpec &input = call.tensor(0), &weight = call.tensor(1);
  if (weight.placement.is_shard()) {  // made by the batch: so many output channels are each row's
    const std::string& name = call.schema().name();
    const bool transposed = name.find("transpose") != std::string::npos || call.boolean(call.find("transposed"));
    if (!others_replicate(call, {1, 2}) || weight.placement.dim != 0 || transposed || call.integer(call.find("groups"), 1) != 1) return Verdict::kNo;
    if (!call.require({2}, weight.placement)) return Verdict::kNo;
    return local(call, weight.placement.at(input.dim() == weight.dim() ? 1 : 0));
  }
  // An input with a dimension less than the weight is one sample without a batch: its dimension 0 are channels.
  if (input.dim() != weight.dim()) return Verdict::kNo;
  return first_alone(call, 0);
}

template <int N>
Verdict planes(OpCall& call) {
  return first_alone(call, call.tensor(0).dim() - N - 1);
}

Verdict planes_of_any(OpCall& call) { return first_alone(call, 1); }

Verdict samples(OpCall& call) {
  for (ArgRef ref : defined_operands(call)) {
    if (!call.require(ref, call.first_split()->placement)) return Verdict::kNo;
  }
  const Placement p = call.first_split()->placement;
  return p.is_shard() && p.dim == 0 ? local(call, p) : Verdict::kNo;
}

Verdict grid_size(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  if (!p.is_shard() || p.dim != 0) return Verdict::kNo;
  call.scale_literal(1, 0, p.outer * p.inner);
  return local(call, p);
}

template <int N>
Verdict samples_of(OpCall& call) { return call.tensor(0).dim() == N ? samples(call) : Verdict::kNo; }

template <int N>
Verdict batched(OpCall& call) {
  return call.tensor(0).dim() == N ? first_alone(call, 0) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
