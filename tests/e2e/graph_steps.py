"""Steps whose last sum was made with something that is gone, so that it is taken as it is, with the graph that it has; then an allocation fails. Each in a child of its
own. Prints for each what came of it: "equal", "out of memory", or what is wrong."""

import ctypes
import os
import sys

import torch

library = ctypes.CDLL(None)
library.koila_set_inject.argtypes = [ctypes.c_char_p]
functional = torch.nn.functional


class Twice(torch.autograd.Function):
    """No operator that a tape has: it begins anew behind it, so what was made before is a capture of what comes."""

    @staticmethod
    def forward(ctx, t):
        return t * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def fails(on):
    assert library.koila_set_inject(b"nth:1" if on else b"") == 0


KEYS = torch.randn(6, 1, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
# The result of each is saved in its node, and most have no rule for rows in that dimension: they run again.
OPERATORS = {
    "softmax of columns": lambda t: t.softmax(0), "log_softmax of columns": lambda t: t.log_softmax(0), "softmax": lambda t: t.softmax(1), "tanh": torch.tanh,
    "qr": lambda t: torch.linalg.qr(t.t())[0].t(), "logcumsumexp": lambda t: t.logcumsumexp(0), "cumprod": lambda t: t.cumprod(0), "pinv": lambda t: torch.linalg.pinv(t).t(),
    "attention": lambda t: functional.scaled_dot_product_attention(t.view(6, 1, 2, 8), KEYS, KEYS).reshape(6, 16),
    "attention among rows": lambda t: functional.scaled_dot_product_attention(t.view(1, 1, 6, 16), KEYS.view(1, 1, 9, 16), KEYS.view(1, 1, 9, 16)).view(6, 16),
    "attention of rows": lambda t: functional.scaled_dot_product_attention(*[t.view(1, 1, 6, 16)] * 3).view(6, 16),
    "layer norm over rows": lambda t: functional.layer_norm(t.t(), (6,)).t(), "exp of a sort": lambda t: t.sort(0)[0].exp(), "svd": lambda t: torch.linalg.svd(t, full_matrices=False)[2],
}
FURTHER = {"linear": lambda t, layer: layer(t), "nothing": lambda t, layer: t.reshape(6, 16), "view": lambda t, layer: layer(t.view(6, 2, 8).transpose(0, 1).reshape(12, 8).view(6, 16)), "softmax again": lambda t, layer: layer(t).softmax(0)}


def run(operator, further, keep):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16, dtype=torch.float64) for _ in range(3)]
    p = torch.nn.Parameter(torch.randn(1, 16, dtype=torch.float64))
    x, z = torch.randn(1, 16, dtype=torch.float64), torch.randn(6, 16, dtype=torch.float64)
    kept = []

    def step(fault):
        for q in (p, *(q for layer in layers for q in layer.parameters())):
            q.grad = None
        gone = p.repeat(6, 1)
        rows = layers[1](z)
        other = Twice.apply(layers[0](x).sum()) * 1.0
        made = operator(rows)
        if keep:
            kept.append(made)
        total = further(made, layers[2]) + gone
        del made, gone
        if fault:
            fails(True)
        weights = torch.linspace(0.5, 1.5, 96, dtype=torch.float64).view(6, 16)
        fails(False)
        loss = (total.square() * weights).mean() + other
        loss.backward()
        return [loss.detach(), *(q.grad for q in (p, *(q for layer in layers for q in layer.parameters())))]

    plain = [None if t is None else t.clone() for t in step(False)]
    try:
        found = step(True)
    except torch.OutOfMemoryError:
        return "out of memory"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for number, (a, b) in enumerate(zip(plain, found)):
        if (a is None) != (b is None) or a is not None and not torch.allclose(a, b, rtol=1e-9, atol=1e-11):
            return f"number {number} is wrong: {b}, plain {a}"
    return "equal"


for name, operator in OPERATORS.items():
    for way, further in FURTHER.items():
        for keep in (False, True):
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                print(f"{name}, then {way}{', kept' if keep else ''}\t{run(operator, further, keep)}", flush=True)
                os._exit(0)
            os.waitpid(child, 0)
