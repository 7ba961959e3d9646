"""Calls of operators that no sample of PyTorch's databases makes: (arguments, keywords), a function by operator."""

import torch

CALLS = {}


def call(name):
    def registered(function):
        CALLS[f"aten::{name}"] = function
        return function
    return registered


def x(*sizes):
    return torch.linspace(-1, 2, max(1, torch.Size(sizes).numel()), dtype=torch.float64).sin().view(sizes)


def indices(*values):
    return torch.tensor(values)


def image():
    return x(5, 2, 6, 6)


@call("_batch_norm_no_update")
def batch_norm_no_update():
    return [((x(5, 3, 4), x(3), x(3), x(3), x(3).abs() + 1, 0.1, 1e-5), {})]


@call("conv_tbc")
def conv_tbc():
    return [((x(5, 4, 3), x(2, 3, 6), x(6), 1), {}), ((x(5, 4, 3), x(2, 3, 6), x(6)), {})]


@call("_embedding_bag")
def embedding_bag():
    return [((x(4, 3), indices(0, 1, 2, 3, 0, 1), indices(0, 2, 4), False, 0), {}), ((x(4, 3), indices(0, 1, 2, 3, 0, 1), indices(0, 1, 1, 4), False, 1), {})]


@call("_embedding_bag_dense_backward")
def embedding_bag_dense_backward():
    out, bag, size, largest = torch.ops.aten._embedding_bag(x(4, 3), indices(0, 1, 2, 3, 0, 1), indices(0, 2, 4), False, 0)
    return [((x(3, 3), indices(0, 1, 2, 3, 0, 1), bag, size, largest, 4, False, 0, None), {})]


@call("_euclidean_dist")
def euclidean_dist():
    return [((x(5, 3), x(4, 3) + 1), {})]


@call("_fused_moving_avg_obs_fq_helper")
def moving_range():
    on = torch.ones(1, dtype=torch.long)
    return [((x(5, 3).float(), on, on, torch.zeros(1), torch.ones(1), torch.ones(1), torch.zeros(1, dtype=torch.int32), 0.1, 0, 7, -1), {})]


@call("_index_put_impl_")
def index_put_impl():
    return [((x(5, 3), [indices(0, 2)], x(2, 3), True), {})]


@call("_is_all_true")
def is_all_true():
    return [((x(5, 3) > -2,), {})]


@call("_is_any_true")
def is_any_true():
    return [((x(5, 3) > 0,), {})]


@call("_masked_softmax")
def masked_softmax():
    return [((x(5, 2, 3, 3), x(5, 2, 3, 3) > 1.5, 3, 2), {})]


@call("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics():
    return [((x(5, 3, 4), x(3), x(3), True, 0.1, 1e-5), {})]


@call("_neg_view")
def neg_view():
    return [((x(5, 3),), {})]


@call("_nnpack_spatial_convolution")
def nnpack():
    return [((image().float(), x(3, 2, 3, 3).float(), None, [0, 0]), {})]


@call("_reshape_alias")
def reshape_alias():
    return [((x(5, 6), [5, 2, 3], [6, 3, 1]), {})]


@call("_reshape_copy")
def reshape_copy():
    return [((x(5, 6), [10, 3]), {})]


@call("_slow_conv2d_forward")
def slow_conv2d():
    return [((image(), x(3, 2, 3, 3), [3, 3], x(3), [1, 1], [0, 0]), {})]


@call("_slow_conv2d_backward.output_mask")
def slow_conv2d_backward():
    return [((x(5, 3, 4, 4), image(), x(3, 2, 3, 3), [3, 3], [1, 1], [0, 0], [True, True, True]), {})]


@call("_standard_gamma")
def standard_gamma():
    return [((x(5, 3).abs() + 0.5,), {})]


@call("_standard_gamma_grad")
def standard_gamma_grad():
    return [((x(5, 3).abs() + 0.5, x(5, 3).abs() + 1), {})]


@call("_unsafe_index.Tensor")
def unsafe_index():
    return [((x(5, 3), [indices(0, 2, 4)]), {})]


@call("_unsafe_index_put")
def unsafe_index_put():
    return [((x(5, 3), [indices(0, 2)], x(2, 3), True), {})]


@call("_upsample_lanczos2d_aa_backward")
def lanczos_backward():
    return [((x(5, 2, 4, 4), [4, 4], [5, 2, 6, 6], False), {})]


@call("_upsample_bicubic2d_aa_backward")
def bicubic_backward():
    return [((x(5, 2, 4, 4), [4, 4], [5, 2, 6, 6], False), {})]


@call("_upsample_nearest_exact2d_backward")
def nearest_exact_2d_backward():
    return [((x(5, 2, 4, 4), [4, 4], [5, 2, 6, 6]), {})]


@call("_upsample_nearest_exact3d_backward")
def nearest_exact_3d_backward():
    return [((x(5, 2, 4, 4, 4), [4, 4, 4], [5, 2, 6, 6, 6]), {})]


@call("upsample_nearest2d_backward")
def nearest_2d_backward():
    return [((x(5, 2, 4, 4), [4, 4], [5, 2, 6, 6]), {})]


@call("upsample_nearest3d_backward")
def nearest_3d_backward():
    return [((x(5, 2, 4, 4, 4), [4, 4, 4], [5, 2, 6, 6, 6]), {})]


@call("embedding_renorm_")
def embedding_renorm():
    return [((x(5, 3) * 4, indices(0, 2, 4), 1.0, 2.0), {})]


@call("lift")
def lift():
    return [((x(5, 3),), {})]


@call("rrelu_with_noise_functional")
def rrelu():
    return [((x(5, 3), torch.ones(5, 3, dtype=torch.float64), 0.1, 0.3, False), {})]


@call("slow_conv3d_forward")
def slow_conv3d():
    return [((x(5, 2, 4, 4, 4), x(3, 2, 2, 2, 2), [2, 2, 2], None, [1, 1, 1], [0, 0, 0]), {})]


@call("slow_conv_dilated3d")
def slow_conv_dilated3d():
    return [((x(5, 2, 5, 5, 5), x(3, 2, 2, 2, 2), [2, 2, 2], None, [1, 1, 1], [0, 0, 0], [2, 2, 2]), {})]


@call("slow_conv_transpose2d")
def slow_conv_transpose2d():
    return [((image(), x(2, 3, 3, 3), [3, 3]), {})]


@call("slow_conv_transpose3d")
def slow_conv_transpose3d():
    return [((x(5, 2, 3, 3, 3), x(2, 3, 2, 2, 2), [2, 2, 2]), {})]


@call("unique_dim")
def unique_dim():
    return [((indices(1, 0, 1, 2, 0), 0), {})]


@call("unique_dim_consecutive")
def unique_dim_consecutive():
    return [((indices(1, 1, 0, 2, 2), 0), {})]


@call("_unique2")
def unique2():
    return [((indices(1, 0, 1, 2, 0), True, True, True), {})]


@call("unique_consecutive")
def unique_consecutive():
    return [((indices(1, 1, 0, 2, 2), True, True), {})]


@call("hash_tensor")
def hash_tensor():
    return [((x(5, 3),), {"dim": [1]})]


@call("mkldnn_convolution")
def mkldnn_convolution():
    return [((image().float(), x(3, 2, 3, 3).float(), None, [0, 0], [1, 1], [1, 1], 1), {})]


@call("slow_conv_dilated2d")
def slow_conv_dilated2d():
    return [((image(), x(3, 2, 3, 3), [3, 3], None, [1, 1], [0, 0], [2, 2]), {})]


@call("median")
@call("nanmedian")
def medians():
    return [((x(5, 3),), {})]


@call("bernoulli_.Tensor")
def bernoulli_of_a_tensor():
    return [((x(5, 3), x(5, 3).abs()), {})]


@call("normal.float_Tensor")
def normal_of_deviations():
    return [((0.5, x(5, 3).abs()), {})]


@call("poisson")
def poisson():
    return [((x(5, 3).abs(),), {})]
