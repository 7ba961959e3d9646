"""Operators that change how a tensor looks at its memory, on values of a batch: by themselves, and inside quantile. See cases.py."""

import torch

import cases

X = torch.linspace(-1, 2, 6 * 3 * 4, dtype=torch.float64).sin().view(6, 3, 4)
CASES = {}


def of(function, micro_batch):
    x = X.clone().requires_grad_(torch.is_grad_enabled())
    if hasattr(torch.ops.koila, "lazy"):
        torch.ops.koila.lazy(x, 0, micro_batch)
    y = function(x * 2)
    if not y.requires_grad:
        return y
    return [y, torch.autograd.grad((y * torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape)).sum(), x)[0]]


FUNCTIONS = {f"{name} {dim} {keep} {q if isinstance(q, float) else len(q)}":
             lambda t, n=name, d=dim, k=keep, q=q: getattr(torch, n)(t, torch.tensor(q, dtype=t.dtype), d, k)
             for name in ("quantile", "nanquantile") for dim in (None, 0, 1, -1) for keep in (False, True) for q in (0.3, [0.2, 0.7])}
FUNCTIONS |= {
    "squeeze_": lambda t: t[:, :1].sin().squeeze_(1).cos(),
    "squeeze_ without a dimension": lambda t: t[:, :1].sin().squeeze_().cos(),
    "unsqueeze_": lambda t: t.sin().unsqueeze_(1).cos(),
    "unsqueeze_ before the batch": lambda t: t.sin().unsqueeze_(0).cos(),
    "transpose_": lambda t: t.sin().transpose_(0, 2).cos(),
    "swapaxes_": lambda t: t.sin().swapaxes_(1, 2).contiguous(),
    "t_": lambda t: t.sum(1).t_().cos(),
    "beside a view": lambda t: (lambda h: h.view(6, -1).sum(1) + h.unsqueeze_(0).sum((0, 2, 3)))(t.sin()),
}
for name in FUNCTIONS:
    for micro_batch in (1, 3):
        CASES[f"{name}, {micro_batch}"] = lambda n=name, m=micro_batch: of(FUNCTIONS[n], m)


if __name__ == "__main__":
    cases.main(CASES)
