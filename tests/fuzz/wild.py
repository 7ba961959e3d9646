"""Operators that nobody wrote down here: methods of a tensor and functions of PyTorch, found by name and tried."""

import functools

import torch
import torch.nn.functional as F

from kinds import kind

# What ends, changes or leaves the process, makes other devices or layouts, or reads memory that nobody wrote.
NEVER = """apply_ backward cpu cuda xpu ipu mtia detach_ register_hook register_post_accumulate_grad_hook requires_grad_ resize_ resize_as_ resize resize_as retain_grad rename rename_ refine_names align_to align_as
set_ share_memory_ module_load map_ map2_ new new_empty new_empty_strided new_tensor storage untyped_storage storage_type data_ptr pin_memory record_stream reinforce random_ normal_ uniform_ exponential_ geometric_ cauchy_ log_normal_
bernoulli_ bernoulli multinomial to_sparse to_mkldnn to_dense to_padded_tensor empty_like untyped type dim_order as_subclass unflatten_ names has_names is_shared is_pinned sparse_resize_ sparse_resize_and_clear_ coalesce
dropout alpha_dropout feature_alpha_dropout feature_dropout dropout1d dropout2d dropout3d dropout_ alpha_dropout_ feature_alpha_dropout_ gumbel_softmax fractional_max_pool2d fractional_max_pool3d rrelu rrelu_ stft istft handle_torch_function has_torch_function
boolean_dispatch assert_int_or_pair lp_pool1d lp_pool2d lp_pool3d has_torch_function_unary has_torch_function_variadic poisson index_reduce_ index_reduce eig symeig lstsq solve histc histogram histogramdd numpy tolist item element_size ndimension
nelement get_device is_set_to is_same_size stride storage_offset size dim numel q_scale q_zero_point int_repr dequantize data_ptr hash unsafe_chunk unsafe_split unsafe_split_with_sizes smm sspaddmm crow_indices col_indices indices values row_indices ccol_indices
is_inference is_complex is_floating_point is_signed is_nonzero is_distributed is_conj is_neg is_coalesced float half bfloat16 chalf cfloat cdouble short int char byte bool long double to set lu_solve put_ pinverse geqrf ormqr orgqr lu multi_head_attention_forward
max_unpool1d max_unpool2d max_unpool3d scaled_grouped_mm grouped_mm scaled_mm ctc_loss sinh_ matrix_power matrix_exp resolve_conj conj conj_physical conj_physical_ adjoint imag real""".split()


@functools.cache
def names():
    tensor = [f"{{h}}.{name}(" for name in dir(torch.Tensor) if not name.startswith("_") and name not in NEVER and callable(getattr(torch.Tensor, name, None))]
    functional = [f"F.{name}({{h}}, " for name in dir(F) if not name.startswith("_") and name not in NEVER and name.islower() and type(getattr(F, name)).__name__ in ("function", "builtin_function_or_method")]
    special = [f"torch.special.{name}({{h}}, " for name in dir(torch.special) if not name.startswith("_") and name.islower() and callable(getattr(torch.special, name)) and "polynomial" not in name and name not in NEVER]
    return tensor + functional + special


@kind(3)
def wild(c):
    h = c.pick()
    start = c.any(names())
    name = start.split("(")[0].split(".")[-1]
    if name.endswith("_") and h[0] == "x":
        return False
    same = c.pick(lambda sizes: sizes == c.sizes(h), recent=False) or h
    arguments = c.any(("", "", "", f"{same}", f"{same}", "0", "1", "-1", "0, 1", "2", "0.4", f"{same}, {same}", "(0,)", "2, 0", f"0, torch.tensor([0]), {same}[:1]", "-1, 0", f"{same} > 0, 0.5", "1, 1", "(3,)"))
    text = start.format(h=h) + arguments + ")"
    text = text.replace(", )", ")")
    if name.endswith("_"):
        copy = c.new("h")
        return c.add(f"{copy} = {h}.clone()\n{copy}{text[len(h):]}" if text.startswith(h) else f"{copy} = {h}.clone()\n{copy} = {text.replace(h, copy)}", (copy,), (name,))
    return c.let(text, name)
