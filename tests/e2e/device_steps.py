"""Tensors on devices that koila does not work on, beside steps on the CPU. See cases.py."""

import tempfile
import types

import torch
import torch.nn as nn
import torch.nn.functional as F

import cases
from real_models import torchvision_on_cpu

CASES = {}
LIBRARIES = []  # of operators that cases register


def case(function):
    CASES[function.__name__] = function
    return function


def meta(*sizes, **more):
    return torch.empty(*sizes, device="meta", **more)


@case
def random_numbers():
    return [meta(3, 4).normal_(), torch.rand(3, 4, device="meta"), torch.bernoulli(meta(3)), torch.randperm(3, device="meta"), torch.rand_like(meta(3)), F.dropout(meta(3)),
            torch.rand_like(torch.ones(3), device="meta"), torch.rand_like(meta(3), device="cpu"), meta(3).uniform_(), torch.multinomial(torch.rand(3, device="meta"), 2),
            torch.randint(3, (2,), device="meta"), F.rrelu(meta(3), training=True), nn.init.trunc_normal_(meta(3, 3)), torch.normal(meta(3), 1.0)]


@case
def a_generator_of_the_cpu():
    return meta(3).normal_(generator=torch.Generator())


@case
def a_module_under_a_default_device():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.BatchNorm1d(4), nn.LSTM(4, 5, dropout=0.5, num_layers=2), )
        y = model(torch.randn(5, 3))[0]
        if y.requires_grad:
            y.sum().backward()
    return [*model.parameters(), y, model[0].weight.grad]


@case
def set_default_device():
    torch.set_default_device("meta")
    try:
        return [nn.Embedding(5, 6).weight, torch.randn(3)]
    finally:
        torch.set_default_device(None)


@case
def to_empty():
    model = nn.TransformerEncoderLayer(8, 2, 16, device="meta", batch_first=True).to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model.eval()(torch.randn(3, 4, 8))


@case
def skip_init():
    layer = nn.utils.skip_init(nn.Linear, 3, 4)
    nn.init.normal_(layer.weight)
    return layer.weight


@case
def init_empty_weights():
    from accelerate import init_empty_weights
    with init_empty_weights():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with init_empty_weights(include_buffers=True):
        other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return [*model.state_dict().values(), *other.state_dict().values()]


@case
def mixed_arguments():
    x = torch.ones(2, 2, requires_grad=torch.is_grad_enabled())
    h = x * 2
    y = meta(2, 2)
    y.copy_(h)
    z = h.to("meta")
    return [y, z, meta(2, 2) * torch.tensor(2.0), z.requires_grad, x * 3]


@case
def an_error_of_mixed_devices():
    return torch.ones(2, 2, requires_grad=torch.is_grad_enabled()) * 2 + meta(2, 2)


@case
def a_meta_tensor_has_no_value():
    return meta(3).sum().item()


@case
def a_step_beside_meta_tensors():
    """The step on the CPU goes through a meta tensor's shape, and back."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(11, 6, dtype=torch.float64)
    h = model[1](model[0](x))
    shadow = torch.rand(h.shape, device="meta", dtype=h.dtype) + h.to("meta")
    loss = model[2](h).pow(2).mean(0).sum() * shadow.size(0)
    if loss.requires_grad:
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]
    return loss


@case
def from_pretrained():
    """transformers makes its model on the meta device, and fills it in."""
    torchvision_on_cpu()
    from transformers import GPT2Config, GPT2LMHeadModel
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).save_pretrained(folder)
        found = []
        for more in ({}, {"low_cpu_mem_usage": True}, {"dtype": torch.bfloat16}):
            model, missing = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True, **more)
            found += [str(sorted(missing["missing_keys"])), model.lm_head.weight, model.transformer.h[0].mlp.c_fc.bias]
        model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
        tokens = torch.randint(40, (24, 16), generator=torch.Generator().manual_seed(1))
        for _ in range(3):
            loss = model(tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            found += [loss, *(p.grad.clone() for p in model.parameters())]
            optimizer.step()
        return [*found, *model.state_dict().values()]


@case
def a_device_of_ones_own():
    """PrivateUse1 under a name of its own, with one kernel, which has no memory to give."""
    if not hasattr(torch, "elsewhere"):
        torch.utils.rename_privateuse1_backend("elsewhere")
        torch._register_device_module("elsewhere", types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, _lazy_init=lambda: None,
                                                                         _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None))
        library = torch.library.Library("aten", "IMPL")
        library.impl("empty.memory_format", no_memory, "PrivateUse1")
        LIBRARIES.append(library)
    return errors_of("elsewhere")


def no_memory(*sizes, **more):
    raise NotImplementedError("the device has no memory")


def errors_of(device):
    errors = []
    for ask in (lambda: torch.rand(3, device=device), lambda: torch.zeros(300, 300, device=device), lambda: torch.ones(3).to(device), lambda: torch.randperm(3, device=device)):
        try:
            errors.append(ask())
        except Exception as error:
            errors.append(f"{type(error).__name__}: {str(error)[:200]}")
    return errors


@case
def devices_that_are_not_there():
    return [errors_of(device) for device in ("xpu", "mps", "hpu", "vulkan", "lazy", "ipu", "xla", "mtia", "maia", "cuda")]


if __name__ == "__main__":
    cases.main(CASES)
