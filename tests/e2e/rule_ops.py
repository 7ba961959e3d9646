"""Operators of one's own, a step through each, and what the steps leave behind: for test_rules.py, which runs this plain and under koila.

    python tests/e2e/rule_ops.py OUT [NAME...]        writes {"name/array": tensor} there
"""

import ctypes
import sys

import torch
from torch import Tensor

B, T, C = 12, 3, 8
STEPS = {}


def step(function):
    STEPS[function.__name__] = function
    return function


def own(schema, backward=None, **kernels):
    """Defines mine::<schema> with a kernel for the CPU, and a gradient as torch.library takes it."""
    name = schema[:schema.index("(")]
    torch.library.define(f"mine::{name}", schema[schema.index("("):])
    torch.library.impl(f"mine::{name}", "CPU", kernels["cpu"])
    if backward:
        torch.library.register_autograd(f"mine::{name}", backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "inputs", inputs))
    return getattr(torch.ops.mine, name)


def rows_times(x, w):
    return torch.tanh(x * w)


def rows_times_backward(ctx, grad):
    x, w = ctx.inputs
    inner = grad * (1 - torch.tanh(x * w).square())
    return inner * w, (inner * x).flatten(0, -2).sum(0)


# Schemas and kernels; the rules stand in test_rules.py.
times = own("times(Tensor x, Tensor w) -> Tensor", rows_times_backward, cpu=rows_times)
merged = own("merged(Tensor x, Tensor w) -> Tensor", rows_times_backward, cpu=rows_times)
pair = own("pair(Tensor a, Tensor b) -> Tensor", lambda ctx, g: (g * 2 * (ctx.inputs[0] - ctx.inputs[1]), None), cpu=lambda a, b: (a - b).square().sum())
average = own("average(Tensor a) -> Tensor", lambda ctx, g: (g / ctx.inputs[0].numel()).expand_as(ctx.inputs[0]), cpu=lambda a: a.mean())
twice = own("twice(Tensor x) -> Tensor", lambda ctx, g: g * 2, cpu=lambda x: x * 2)
take = own("take(Tensor x, int rows, int[] size) -> Tensor",
           lambda ctx, g: (torch.cat([g.reshape(ctx.inputs[1], -1), g.new_zeros(len(ctx.inputs[0]) - ctx.inputs[1], C)]), None, None),
           cpu=lambda x, rows, size: x[:rows].reshape(size).clone())
add_all = own("add_all(Tensor[] xs) -> Tensor", lambda ctx, g: ([g] * len(ctx.inputs[0]),), cpu=lambda xs: sum(xs[1:], xs[0].clone()))
both = own("both(Tensor x) -> (Tensor, Tensor)", lambda ctx, g, h: g * 3 + h, cpu=lambda x: (x * 3, x.sum(0)))
optional = own("optional(Tensor x, Tensor? y=None) -> Tensor", lambda ctx, g: (g, None if ctx.inputs[1] is None else g), cpu=lambda x, y=None: x.clone() if y is None else x + y)
plus_one = own("plus_one(Tensor x) -> Tensor", lambda ctx, g: g, cpu=lambda x: x + 1)
plus_one_ = own("plus_one_(Tensor(a!) x) -> Tensor(a!)", cpu=lambda x: x.add_(1))
shorter = own("shorter(Tensor x) -> Tensor", lambda ctx, g: torch.cat([g.new_zeros(1, C), g]), cpu=lambda x: x[1:].clone())
misnamed = own("misnamed(Tensor x) -> Tensor", lambda ctx, g: g, cpu=lambda x: x + 1)
late = own("late(Tensor x) -> Tensor", lambda ctx, g: g, cpu=lambda x: x + 1)
writes = own("writes(Tensor x, Tensor(a!) out) -> ()", cpu=lambda x, out: [None, out.copy_(x)][0])
counted = own("counted(Tensor x) -> Tensor", cpu=lambda x: (x > 0).sum())


def whole_batches_only(x):
    if len(x) != B:
        raise ValueError(f"wants {B} rows")
    return x + 1


picky = own("picky(Tensor x) -> Tensor", lambda ctx, g: g, cpu=whole_batches_only)


@torch.library.custom_op("mine::noisy", mutates_args=())
def noisy(x: Tensor) -> tuple[Tensor, Tensor]:
    mask = (torch.rand_like(x) < 0.5).to(x.dtype)
    return x * mask, mask


noisy.register_autograd(lambda ctx, g, _: g * ctx.mask, setup_context=lambda ctx, inputs, output: setattr(ctx, "mask", output[1]))


def parameters(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def batch(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


@step
def rows(save):
    p, w = parameters((C, C), (C,))
    save(times(batch(B, T, C) @ p, w).square().sum(), p, w)


@step
def merged_rows(save):
    """Rows merged with what stands behind them, and with what stands before."""
    p, w = parameters((C, C), (C,))
    behind = merged((batch(B, T, C) @ p).view(B * T, C), w)
    h = batch(B, C) @ p
    before = merged(torch.cat([h, h * 2]), w)
    save(behind.square().sum() + before.square().sum(), p, w)


@step
def losses(save):
    (p,) = parameters((C, C))
    h = batch(B, C) @ p
    save(pair(h, batch(B, C) * 2), p)
    save(average(batch(B, C) @ p * 3), p)


@step
def sums(save):
    (p,) = parameters((C, C))
    save(twice((batch(B, C) @ p).square().sum(0)).sum(), p)


@step
def literals(save):
    (p,) = parameters((C, C))
    save(take(batch(B, C) @ p, B, [B, 2, C // 2]).square().sum(), p)


@step
def literals_of_another_meaning(save):
    (p,) = parameters((C, C))
    save(take(batch(B, C) @ p, 4, [4, C]).square().sum(), p)


@step
def lists(save):
    (p,) = parameters((C, C))
    h = batch(B, C) @ p
    save(add_all([h, h.square(), batch(B, C) * 3]).square().sum(), p)


@step
def two_results(save):
    (p,) = parameters((C, C))
    rows, total = both((batch(B, C) @ p).tanh())
    save(rows.square().sum() + total.sum(), p)


@step
def optionals(save):
    (p,) = parameters((C, C))
    h = batch(B, C) @ p
    save((optional(h) + optional(h, batch(B, C)) + optional(h, h.square())).square().sum(), p)


@step
def in_place(save):
    (p,) = parameters((C, C))
    x = batch(B, C) * 2
    plus_one_(x)
    save((plus_one(x @ p)).square().sum(), p)


@step
def wrong_shape(save):
    (p,) = parameters((C, C))
    save(shorter(batch(B, C) @ p).square().sum(), p)


@step
def wrong_names(save):
    (p,) = parameters((C, C))
    save((misnamed(batch(B, C) @ p)).square().sum(), p)


@step
def wrong_mean(save):
    (p,) = parameters((C, C))
    h = batch(B, C) @ p
    save(h.square().sum() * counted(h), p)


@step
def writing(save):
    (p,) = parameters((C, C))
    h, out = batch(B, C) @ p, torch.empty(B, C)
    writes(h.detach(), out)
    save((h * out).sum(), p)


@step
def fussy(save):
    (p,) = parameters((C, C))
    save(picky(batch(B, C) @ p).square().sum(), p)


@step
def draws(save):
    """Other draws than plain's; backward must see the forward pass's."""
    (p,) = parameters((B, C))
    kept, mask = noisy(p * 1.0)
    (kept * batch(B, C)).sum().backward()
    assert torch.equal(p.grad, mask * batch(B, C)), "backward drew again"


@step
def rule_that_comes_later(save):
    (p,) = parameters((C, C))
    save(late(batch(B, C) @ p).square().sum(), p)
    koila = ctypes.CDLL(None)
    if hasattr(koila, "koila_add_rule"):
        assert koila.koila_add_rule(b"mine::late(x: Shard(0)) -> Shard(0)", b"here:1") == 0
        assert koila.koila_add_rule(b"mine::late(x: Shard(0)) -> ", b"here:2") == 1
    save(late(batch(B, C) @ p).square().sum(), p)
    save(late(batch(B, C) @ p).square().sum(), p)


@step
def defined_anew(save):
    """As when a notebook's cell is run again: other arguments under the same name, then the same arguments."""
    (p,) = parameters((C, C))
    for schema, kernel, extra in (("(Tensor x) -> Tensor", lambda x: x + 1, ()), ("(Tensor y, Tensor x, float f) -> Tensor", lambda y, x, f: x * f, (batch(B, C), 2.0))):
        with torch.library._scoped_library("mine", "FRAGMENT") as library:
            library.define(f"again{schema}")
            library.impl("again", kernel, "CompositeImplicitAutograd")
            for _ in range(2):
                h = batch(B, C) @ p
                save(torch.ops.mine.again.default(*extra[:1], h, *extra[1:]).square().sum(), p)


def main():
    out, *names = sys.argv[1:]
    found = {}
    for name in names or STEPS:
        count = 0

        def save(loss, *leaves):
            nonlocal count
            loss.backward()
            found[f"{name}/loss{count}"] = loss.detach().clone()
            for i, leaf in enumerate(leaves):
                found[f"{name}/gradient{count}.{i}"] = leaf.grad.clone()
                leaf.grad = None
            count += 1

        for _ in range(2):  # the first step is converted, the second goes lazily
            STEPS[name](save)
    torch.save(found, out)


if __name__ == "__main__":
    main()
