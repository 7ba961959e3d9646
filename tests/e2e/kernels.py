"""Kernels' own interfaces in a training step, as compiled graphs, traced modules and libraries call them. Those of CUDA have stand-ins on the CPU (tests/placement/stand_ins.cc)."""

import ctypes
import os
from pathlib import Path

import torch
import torch.nn.functional as F

from traps import HIDDEN, Trap, outputs, register

BUILD = Path(os.environ.get("KOILA_BUILD", Path(__file__).resolve().parents[2] / "build"))
STAND_INS = BUILD / "tests" / "placement" / "libkernel_stand_ins.so"
if STAND_INS.exists():
    ctypes.CDLL(str(STAND_INS))
aten = torch.ops.aten

# Operators that are to run in micro-batches, and those that are to run whole, by family.
SPLIT, WHOLE = {}, {}


def between(*, split=(), whole=(), method="mix"):
    def registered(function):
        SPLIT[function.__name__], WHOLE[function.__name__] = set(split), set(whole)
        return register(function, method, Trap)
    return registered


def heads(h):
    """Three tokens of two heads."""
    return h.unflatten(1, (3, 2, 2)).transpose(1, 2)


def flat(out):
    return out.transpose(1, 2).flatten(1)


# ---- attention ------------------------------------------------------------------------------------------------------------------


@between(split=["aten::_scaled_dot_product_flash_attention"])
def flash_attention(h):
    q = heads(h)
    out, sums, _, _, longest, *_ = aten._scaled_dot_product_flash_attention(q, q * 2, q.sin(), 0.0, True)
    assert longest == 3
    return h + flat(out) + 0.1 * sums.detach().mean()


@between(split=["aten::_scaled_dot_product_efficient_attention"])
def efficient_attention_with_a_bias_of_each_row(h):
    q = heads(h)
    bias = h[:, None, :3, None] * torch.ones(1, 2, 1, 3, dtype=h.dtype)
    return h + flat(aten._scaled_dot_product_efficient_attention(q, q * 2, q.sin(), bias, torch.is_grad_enabled())[0])


@between(split=["aten::_scaled_dot_product_cudnn_attention"])
def cudnn_attention(h):
    q = heads(h)
    return h + flat(aten._scaled_dot_product_cudnn_attention(q, q, q, None, True, 0.0, False)[0])


@between(split=["aten::_scaled_dot_product_flash_attention_for_cpu"])
def attention_of_the_cpu(h):
    q = heads(h)
    return h + flat(aten._scaled_dot_product_flash_attention_for_cpu(q, q, q.cos(), attn_mask=torch.zeros(3, 3, dtype=h.dtype).fill_diagonal_(-1))[0])


@between(split=["aten::_flash_attention_forward", "aten::_efficient_attention_forward"])
def attention_with_heads_last(h):
    q = h.unflatten(1, (3, 2, 2))
    flash = aten._flash_attention_forward(q, q, q, None, None, 3, 3, 0.0, False, False)[0]
    efficient = aten._efficient_attention_forward(q, flash, q, None, None, None, None, None, 0.0, 0, True)[0]
    return h + (flash + efficient).flatten(1)


@between(whole=["aten::_scaled_dot_product_flash_attention"])
def attention_within_the_batch(h):
    """Rows are tokens: each sees all others."""
    q = h.unflatten(1, (2, 6)).transpose(0, 1)[None]
    return h + aten._scaled_dot_product_flash_attention(q, q, q)[0][0].transpose(0, 1).flatten(1)


# ---- norms and convolutions -------------------------------------------------------------------------------------------------------


@between(split=["aten::_fused_rms_norm", "aten::native_group_norm"])
def norms_of_rows(h):
    h = aten._fused_rms_norm(h, [HIDDEN], None, None)[0]
    return h + aten.native_group_norm(h.unflatten(1, (4, 3)), None, None, len(h), 4, 3, 2, 1e-5)[0].flatten(1)


@between(split=["aten::native_batch_norm", "aten::_native_batch_norm_legit_no_training", "aten::batch_norm_elemt"])
def norms_by_given_statistics(h):
    mean, var = torch.linspace(-1, 1, HIDDEN, dtype=h.dtype), torch.linspace(0.5, 2, HIDDEN, dtype=h.dtype)
    with torch.no_grad():
        shift = aten.batch_norm_elemt(h, None, None, mean, var, 1e-5)
    return aten.native_batch_norm(h, var, mean, mean, var, False, 0.1, 1e-5)[0] + aten._native_batch_norm_legit_no_training(h, None, None, mean, var, 0.1, 1e-5)[0] + shift


@between(whole=["aten::native_batch_norm"])
def norm_by_the_batch_through_its_kernel(h):
    return h + aten.native_batch_norm(h, None, None, None, None, True, 0.1, 1e-5)[0]


@between(split=["aten::batch_norm_elemt"], whole=["aten::batch_norm_stats"], method="loss")
def statistics_of_several_processes(model, x, y):
    """As a synchronised batch norm finds them: of all rows, and with running statistics that move without a word."""
    if not hasattr(model, "mean"):
        model.register_buffer("mean", torch.zeros(HIDDEN, dtype=x.dtype))
        model.register_buffer("var", torch.ones(HIDDEN, dtype=x.dtype))
    h = torch.tanh(model[0](x))
    with torch.no_grad():
        mean, invstd = aten.batch_norm_stats(h, 1e-5)
        mean, invstd = aten.batch_norm_gather_stats(h, torch.stack([mean, mean]), torch.stack([invstd, invstd]), model.mean, model.var, 0.1, 1e-5, len(h))
        shift = aten.batch_norm_elemt(h, None, None, mean, invstd, 1e-5)
    return F.cross_entropy(model[2](torch.tanh(model[1]((h - mean) * invstd + shift))), y)


@between(split=["aten::_convolution"])
def traced_convolution(h):
    weight = torch.linspace(-1, 1, 4 * 2 * 3, dtype=h.dtype).view(4, 2, 3)
    return h + aten._convolution(h.unflatten(1, (2, 6)), weight, None, [2], [1], [1], False, [0], 1, False, False, False, False).flatten(1)


# ---- losses and embeddings ----------------------------------------------------------------------------------------------------------


def ctc(model, x, one_behind_the_other):
    h = torch.tanh(model[1](torch.tanh(model[0](x))))
    logs = h.unflatten(1, (4, 3)).log_softmax(-1).transpose(0, 1)
    lengths = [i % 3 for i in range(len(x))]
    targets = torch.ones(sum(lengths), dtype=torch.long) if one_behind_the_other else torch.tensor([[1, 2]]).expand(len(x), 2)
    return F.ctc_loss(logs, targets, [4] * len(x), lengths) + F.ctc_loss(logs, targets, [4] * len(x), lengths, reduction="sum") + model[2](h).square().mean()


@between(split=["aten::ctc_loss", "aten::_ctc_loss"], method="loss")
def ctc_of_lists(model, x, y):
    return ctc(model, x, False)


@between(split=["aten::ctc_loss", "aten::_ctc_loss"], method="loss")
def ctc_of_lists_one_behind_the_other(model, x, y):
    return ctc(model, x, True)


@between(whole=["aten::_embedding_bag"], method="loss")
def bags(model, x, y):
    """Where a bag begins is counted within the indices of the whole batch."""
    h = torch.tanh(model[0](x))
    picked = h.detach().argsort(1)
    return F.cross_entropy(model[2](F.embedding_bag(picked, model[1].weight, mode="mean") + F.embedding_bag(picked, model[1].weight, per_sample_weights=h, mode="sum")), y)


@between(split=["aten::masked_scatter"])
def placed_by_a_mask(h):
    """What was made of an image, in the place of the second of three tokens."""
    text = h.unflatten(1, (3, 4))
    return text.masked_scatter((torch.arange(3) == 1)[None, :, None].expand_as(text), h[:, :4].sin()).flatten(1)


@between(whole=["aten::masked_scatter"])
def placed_unevenly(h):
    """The first row takes none of the images, the second two, and so on: each takes what the rows before it have left."""
    takes = torch.arange(len(h))[:, None] % 2 == 1
    return h.masked_scatter(takes & (torch.arange(HIDDEN) < 8), h[:, 4:8].sin()) + h


# ---- effects ------------------------------------------------------------------------------------------------------------------------


@between(method="loss")
def weights_put_together(model, x, y):
    """As flatten_parameters() does before each use of a recurrent layer: between two uses, the second time with the weights in a block already."""
    total = 0
    for _ in range(2):
        with torch.no_grad():
            aten._cudnn_rnn_flatten_weight([model[1].weight, model[1].bias], 2, HIDDEN, 2, HIDDEN, 0, 1, True, False)
        total = total + F.cross_entropy(outputs(model, x), y)
        x = x + 1
    return total


@between(method="loss")
def streams_recorded(model, x, y):
    """Of a batch that another stream has copied, and of what the step has computed."""
    stream = torch.Stream("cpu")
    x.record_stream(stream)
    h = torch.tanh(model[0](x))
    out = model[2](torch.tanh(model[1](h)))
    h.record_stream(stream)
    return F.cross_entropy(out, y)
