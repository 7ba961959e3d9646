"""Sums over rows in 16 bits: plain, in micro-batches, and in double precision. See cases.py.

    python half_steps.py            each case by hand-given micro-batches, where koila is there; plain elsewhere
    python half_steps.py double ... the truth
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import cases

ROWS = 41
CASES = {}


def split(x, micro_batch):
    if hasattr(torch.ops.koila, "lazy"):
        torch.ops.koila.lazy(x, 0, micro_batch)
    return x


def generator():
    return torch.Generator().manual_seed(3)


def drawn(*sizes, shift=0.0):
    return torch.randn(*sizes, generator=generator(), dtype=torch.float64) + shift


LABELS = torch.arange(ROWS) % 5
SUMS = {
    "sum": lambda x, w: (x * w).sum(),
    "sum of columns": lambda x, w: (x * w).sum(0),
    "mean": lambda x, w: (x * w).mean(),
    "mean of columns": lambda x, w: (x * w).mean(0),
    "mean kept": lambda x, w: (x * w).mean(0, keepdim=True),
    "cross_entropy": lambda x, w: F.cross_entropy(x * w, LABELS),
    "cross_entropy smoothed": lambda x, w: F.cross_entropy(x * w, LABELS, label_smoothing=0.1),
    "cross_entropy weighted": lambda x, w: F.cross_entropy(x * w, LABELS, weight=w.detach().abs() + 0.5),
    "cross_entropy with gaps": lambda x, w: F.cross_entropy(x * w, torch.where(LABELS == 2, -100, LABELS)),
    "nll_loss": lambda x, w: F.nll_loss(F.log_softmax(x * w, 1), LABELS),
    "mse_loss": lambda x, w: F.mse_loss(x * w, torch.ones_like(x)),
    "mse_loss summed": lambda x, w: F.mse_loss(x * w, torch.ones_like(x), reduction="sum"),
    "l1_loss": lambda x, w: F.l1_loss(x * w, torch.ones_like(x)),
    "smooth_l1_loss": lambda x, w: F.smooth_l1_loss(x * w, torch.ones_like(x)),
    "huber_loss": lambda x, w: F.huber_loss(x * w, torch.ones_like(x)),
    "binary_cross_entropy_with_logits": lambda x, w: F.binary_cross_entropy_with_logits(x * w, torch.full_like(x, 0.25)),
    "kl_div": lambda x, w: F.kl_div(F.log_softmax(x * w, 1), F.softmax(x.detach() * 0.5, 1), reduction="batchmean"),
    "chain of sums": lambda x, w: ((x * w).abs().mean(0) * 3 + w * 0.5).sum() / 7,
    "views of a sum": lambda x, w: (x * w).sum(0).view(5, 1).t().squeeze(0)[1:4].neg(),
    "written to": lambda x, w: (x * w).sum(0).add_((x + w).mean(0)).mul_(0.5),
    "in single precision": lambda x, w: (x * w).mean().float() * 2,
    "of both": lambda x, w: F.mse_loss((x * w).float(), torch.ones(x.shape)).to(x.dtype) + (x * w).mean(),
    "stacked": lambda x, w: torch.stack([(x * w).sum(0), (x - w).mean(0)]),
    "concatenated": lambda x, w: torch.cat([(x * w).sum(0), (x - w).mean(0)]),
    "product of rows": lambda x, w: (x * w).t() @ x,
    "a sum's type": lambda x, w: (x * w).sum(0, dtype=x.dtype),
    "norm": lambda x, w: (x * w).norm(),
    "variance": lambda x, w: (x * w).var(0),
    "a linear layer of a sum": lambda x, w: F.linear((x * w).mean(0), w.detach().repeat(3, 1)),
    "of a row's mean": lambda x, w: (x * w).mean(1).mean(),
    "logsumexp": lambda x, w: (x * w).logsumexp(0),
}


def numbers(dtype, name, micro_batch, shift):
    x = drawn(ROWS, 5, shift=shift).to(torch.bfloat16 if dtype != torch.float16 else dtype).to(dtype)
    w = torch.linspace(0.5, 1.5, 5, dtype=torch.float64).to(torch.bfloat16).to(dtype).requires_grad_()
    leaf = x.clone().requires_grad_()
    split(leaf, micro_batch)
    y = SUMS[name](leaf.clone(), w)
    with torch.enable_grad():
        gradients = torch.autograd.grad(y, [leaf, w], torch.linspace(1, 2, y.numel(), dtype=torch.float64).to(y.dtype).view(y.shape)) if y.requires_grad else []
    return [y, *gradients]


def complex_half(micro_batch):
    x = torch.view_as_complex(drawn(ROWS, 5, 2)).to(torch.complex32 if DOUBLE is False else torch.complex128)
    x = x if DOUBLE is False else torch.view_as_complex(drawn(ROWS, 5, 2)).to(torch.complex32).to(torch.complex128)
    split(x, micro_batch)
    return (x.clone() * 1).sum(0)


def training(dtype):
    """Two steps of a small network; the truth is taken from where each step began."""
    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 5))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 0.3 + (1 if i == 4 else 0))
    net = net.to(torch.bfloat16).to(dtype)
    x, y = torch.randn(600, 8, generator=generator()).to(torch.bfloat16).to(dtype), torch.arange(600) % 5
    with torch.enable_grad():
        loss = F.cross_entropy(net(x), y)
        loss.backward()
    return [loss, *(p.grad for p in net.parameters())]


DOUBLE = "double" in sys.argv
if DOUBLE:
    sys.argv.remove("double")
for type_name, dtype in {"bfloat16": torch.bfloat16, "half": torch.float16}.items():
    for name in SUMS:
        for micro_batch in (1, 3):
            for shift in (0.0, 2.0):
                CASES[f"{type_name} {name} {micro_batch} {shift}"] = lambda d=dtype, n=name, m=micro_batch, s=shift: numbers(torch.float64 if DOUBLE else d, n, m, s)
for micro_batch in (1, 3):
    CASES[f"complex {micro_batch}"] = lambda m=micro_batch: complex_half(m)
CASES["training"] = lambda: training(torch.float64 if DOUBLE else torch.bfloat16)


if __name__ == "__main__":
    cases.main(CASES)
