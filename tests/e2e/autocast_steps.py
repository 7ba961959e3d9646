"""What autocast makes of calls on a split batch: each device has a list of its own of what it takes to single precision. See cases.py.

    python autocast_steps.py cpu|cuda       in micro-batches of 2 rows, where koila is there; plain elsewhere
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import cases

DEVICE = sys.argv.pop(1)
ROWS = 6


def labels(h):
    return torch.arange(len(h), device=h.device) % h.size(1)


def groups(h):
    return torch.arange(len(h), device=h.device) % 3


CALLS = {
    "softmax": lambda h: h.softmax(0),
    "softmax by function": lambda h: F.softmax(h, 0),
    "softmax of features": lambda h: h.softmax(1),
    "log_softmax": lambda h: h.log_softmax(0),
    "log_softmax in a type": lambda h: h.log_softmax(0, dtype=torch.float64),
    "logsumexp": lambda h: h.logsumexp(0),
    "logsumexp kept": lambda h: h.logsumexp(0, keepdim=True),
    "logsumexp of all": lambda h: h.flatten().logsumexp(0),
    "norm": lambda h: h.norm(),
    "norm of columns": lambda h: torch.linalg.vector_norm(h, dim=0),
    "largest": lambda h: h.max(),
    "largest of columns": lambda h: h.amax(0),
    "smallest of columns": lambda h: h.min(0)[0],
    "var": lambda h: h.var(0),
    "std": lambda h: h.std(),
    "std_mean": lambda h: torch.std_mean(h, 0),
    "sum": lambda h: h.sum(),
    "sum of columns": lambda h: h.sum(0),
    "mean": lambda h: h.mean(),
    "mean of columns": lambda h: h.mean(0),
    "mean of some rows": lambda h: h[h[:, 0] > 0].mean(),
    "mean of columns of some rows": lambda h: h[h[:, 0] > 0].mean(0),
    "sum of some rows": lambda h: h[h[:, 0] > 0].sum(0),
    "squeeze": lambda h: h.unsqueeze(1).squeeze(),
    "cumsum": lambda h: h.cumsum(1),
    "prod": lambda h: h.prod(1),
    "batch_norm": lambda h: F.batch_norm(h, None, None, training=True),
    "instance_norm": lambda h: F.instance_norm(h.view(len(h), 2, -1)),
    "layer_norm": lambda h: F.layer_norm(h, h.shape[1:]),
    "normalize": lambda h: F.normalize(h, dim=0),
    "mse_loss": lambda h: F.mse_loss(h, torch.zeros_like(h)),
    "cross_entropy": lambda h: F.cross_entropy(h, labels(h)),
    "cross_entropy weighted": lambda h: F.cross_entropy(h, labels(h), weight=torch.rand(h.size(1), device=h.device)),
    "cross_entropy with gaps": lambda h: F.cross_entropy(h, torch.where(labels(h) == 2, -100, labels(h))),
    "bce with weights": lambda h: F.binary_cross_entropy_with_logits(h, torch.ones_like(h), pos_weight=torch.full((1,), 2.0, device=h.device)),
    "kl_div": lambda h: F.kl_div(h, torch.ones_like(h), reduction="batchmean"),
    "product of rows": lambda h: h.t() @ h,
    "einsum": lambda h: torch.einsum("ij,ik->jk", h, h),
    "index_add": lambda h: torch.zeros(3, h.size(1), device=h.device, dtype=h.dtype).index_add(0, groups(h), h),
    "pdist": lambda h: F.pdist(h),
    "cdist": lambda h: torch.cdist(h, h + 1),
}


def case(call):
    def run():
        torch.manual_seed(3)
        linear = nn.Linear(8, 12).to(DEVICE)
        x = torch.randn(ROWS, 8).to(DEVICE)
        if hasattr(torch.ops.koila, "lazy"):
            torch.ops.koila.lazy(x, 0, 2)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            y = call(linear(x))
        of = y if isinstance(y, torch.Tensor) else y[0]
        gave = [t.cpu() for t in (y if isinstance(y, tuple) else (y,))]
        if of.requires_grad:
            (of.float() * torch.linspace(0.5, 1.5, of.numel(), device=DEVICE).view(of.shape)).sum().backward()
            gave.append(linear.weight.grad.cpu())
        return gave
    return run


if __name__ == "__main__":
    import contextlib
    if DEVICE == "cuda":
        from pathlib import Path
        sys.path.append(str(Path(__file__).resolve().parent.parent / "cuda" / "device"))
        import sim_cuda
    with sim_cuda.cuda_by_default() if DEVICE == "cuda" else contextlib.nullcontext():
        cases.main({name: case(call) for name, call in CALLS.items()})
