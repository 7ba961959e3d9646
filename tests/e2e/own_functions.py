"""Small training programs with autograd.Functions and hooks in the middle of their steps, each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

    koila run --ladder 0,1 -- python tests/e2e/own_functions.py NAME...
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function

from shared_functions import Doubled, Nearest, Reversed
from under_budgets import STEPS, Programs, main, train

PROGRAMS = program = Programs()
# Below them a Function, or what hooks are given, is the larger part; a second pass over one graph cannot go on where a Function has run; what is written to through `.data` ends the tape.
program.shares = {"rounded_beside_a_sum": (0.9, 0.8), "hook_that_clips": (0.9, 0.8), "two_passes_over_one_graph": (0.7, 0.6), "reversed_and_written_to": (0.9,)}


def mlp(*sizes):
    layers = [layer for inside, outside in zip(sizes, sizes[1:]) for layer in (nn.Linear(inside, outside), nn.GELU())]
    return nn.Sequential(*layers[:-1])


class Rounded(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1)


class Normed(Function):
    """Its backward writes into what was saved, as the fused ones do."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x * scale, scale, weight)
        return x * scale * weight

    @staticmethod
    def backward(ctx, gradient):
        y, scale, weight = ctx.saved_tensors
        of_weight = (gradient * y).flatten(0, -2).sum(0)
        g = gradient * weight
        y.mul_((g * y).mean(-1, keepdim=True))
        return (g - y) * scale, of_weight


class Compared(Function):
    """Its forward method takes more than all around it, and is where memory runs out."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x[:, None] * w).sigmoid().sum(1)

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        of_x, of_w = torch.empty_like(x), torch.zeros_like(w)
        for rows in torch.arange(len(x)).split(32):
            t = (x[rows, None] * w).sigmoid()
            t = t * (1 - t) * gradient[rows, None]
            of_x[rows] = (t * w).sum(1)
            of_w += (t * x[rows, None]).sum(0)
        return of_x, of_w


class Sorted(Function):
    """Couples the rows of the batch."""

    @staticmethod
    def forward(ctx, x):
        values, order = x.sort(0)
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient).scatter_(0, ctx.saved_tensors[0], gradient)


WITHIN = torch.library.Library("within", "DEF")
WITHIN.define("nearest(Tensor z, Tensor book) -> (Tensor, Tensor)")
WITHIN.impl("nearest", lambda z, book: Nearest.apply(z, book), "CompositeImplicitAutograd")


@program
def within_an_operator(out):
    """An operator that is composed of a Function has its gradients, whichever of its operators are split."""
    model = nn.ModuleList([mlp(32, 256, 256, 16), mlp(16, 256, 256, 32)])
    model.register_parameter("book", nn.Parameter(torch.randn(24, 16)))

    def loss():
        x = torch.randn(512, 32)
        code, which = torch.ops.within.nearest(model[0](x), model.book)
        return F.mse_loss(model[1](code), x) + 0 * which.sum()

    train(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), out, loss)
    return model


@program
def reversed_gradients(out):
    features, classes, domains = mlp(32, 256, 256, 128), mlp(128, 256, 10), mlp(128, 256, 2)

    def loss():
        x, y, domain = torch.randn(512, 32), torch.randint(10, (512,)), torch.randint(2, (512,))
        h = features(x)
        return F.cross_entropy(classes(h), y) + F.cross_entropy(domains(Reversed.apply(h, 0.3)), domain)

    model = nn.ModuleList([features, classes, domains])
    train(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), out, loss)
    return model


@program
def reversed_and_written_to(out):
    """The Function's output has the memory of its input: what is written to the one is in the other."""
    features, domains = mlp(32, 256, 256, 128), mlp(128, 256, 2)

    def loss():
        x, domain = torch.randn(512, 32), torch.randint(2, (512,))
        h = features(x)
        reversed_ = Reversed.apply(h, 0.3)
        reversed_.data.clamp_(max=0.1)
        return F.cross_entropy(domains(reversed_), domain) + h.mean()

    model = nn.ModuleList([features, domains])
    train(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), out, loss)
    return model


@program
def rounded_beside_a_sum(out):
    """`x + f(x)`: nobody holds what the Function gave."""
    model = nn.ModuleList([mlp(32, 128), *[mlp(128, 256, 128) for _ in range(4)], mlp(128, 5)])

    def loss():
        h = model[0](torch.randn(512, 32))
        for block in model[1:-1]:
            h = h + Rounded.apply(torch.tanh(block(h)))
        return F.mse_loss(model[-1](h), torch.randn(512, 5))

    train(torch.optim.AdamW(model.parameters(), 1e-3), out, loss)
    return model


@program
def nearest_of_a_codebook(out):
    encoder, decoder = mlp(48, 256, 256, 16), mlp(16, 256, 256, 48)
    model = nn.ModuleList([encoder, decoder, nn.Embedding(32, 16)])

    def loss():
        x = torch.randn(512, 48)
        z = encoder(x)
        q, _ = Nearest.apply(z, model[2].weight)
        return F.mse_loss(decoder(q), x) + 0.25 * F.mse_loss(z, q.detach())

    train(torch.optim.Adam(model.parameters(), 1e-3), out, loss)
    return model


@program
def normed_by_a_function(out):
    """A transformer whose norms are Functions."""
    d, weights = 32, nn.ParameterList([nn.Parameter(torch.ones(32)) for _ in range(5)])
    layers = nn.ModuleList([nn.ModuleList([nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d), mlp(d, 4 * d, d)]) for _ in range(2)])
    ends = nn.ModuleList([nn.Embedding(20, d), nn.Linear(d, 20)])

    def loss():
        tokens = torch.randint(20, (32, 24))
        h = ends[0](tokens)
        for i, (qkv, join, wide) in enumerate(layers):
            q, k, v = (t.unflatten(2, (4, 8)).transpose(1, 2) for t in qkv(Normed.apply(h, weights[2 * i])).chunk(3, 2))
            h = h + join(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            h = h + wide(Normed.apply(h, weights[2 * i + 1]))
        return F.cross_entropy(ends[1](Normed.apply(h, weights[4])).flatten(0, 1), tokens.flatten())

    model = nn.ModuleList([layers, ends, weights])
    train(torch.optim.AdamW(model.parameters(), 1e-3), out, loss)
    return model


@program
def memory_runs_out_in_forward(out):
    """The Function's node is there already, and hangs on the old graph of what it was given."""
    model = nn.ModuleList([mlp(48, 256, 256, 64), mlp(64, 256, 256, 48), nn.Embedding(16, 64)])

    def loss():
        x = torch.randn(512, 48)
        z = F.relu(model[0](x))
        return F.mse_loss(model[1](Compared.apply(z, model[2].weight)), x) + 0.25 * z.pow(2).mean()

    train(torch.optim.SGD(model.parameters(), 1e-2), out, loss)
    return model


@program
def gradient_before_the_function(out):
    """The engine leaves out what lies behind what it is asked for, by numbers that a rewired node does not have."""
    model = nn.ModuleList([mlp(32, 256, 128), mlp(128, 256, 256, 8)])

    def loss():
        h = model[0](torch.randn(512, 32))
        value = model[1](Rounded.apply(h)).pow(2).mean()
        out(torch.autograd.grad(value, h, retain_graph=True)[0])
        return value

    train(torch.optim.SGD(model.parameters(), 1e-2), out, loss)
    return model


@program
def sorted_across_the_batch(out):
    before, after = mlp(32, 256, 256, 64), mlp(64, 256, 256, 8)

    def loss():
        return F.mse_loss(after(Sorted.apply(before(torch.randn(512, 32)))), torch.randn(512, 8))

    model = nn.ModuleList([before, after])
    train(torch.optim.Adam(model.parameters(), 1e-3), out, loss)
    return model


@program
def hooked_module(out):
    """register_full_backward_hook puts Functions before and behind the module."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 64, 10))
    model[4].register_full_backward_hook(lambda _, of_inputs, of_outputs: out(of_inputs[0].mean(), of_outputs[0].norm()))

    def loss():
        return F.cross_entropy(model(torch.randn(48, 3, 16, 16)), torch.randint(10, (48,)))

    train(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), out, loss)
    return model


@program
def hook_that_clips(out):
    """A full backward hook that gives other gradients."""
    model = nn.Sequential(mlp(32, 256, 256), nn.Linear(256, 256), mlp(256, 256, 8))
    model[1].register_full_backward_hook(lambda _, of_inputs, of_outputs: (of_inputs[0].clamp(-1e-4, 1e-4),))
    model[1].register_full_backward_pre_hook(lambda _, of_outputs: (of_outputs[0] * 0.5,))

    def loss():
        return F.mse_loss(model(torch.randn(512, 32)), torch.randn(512, 8))

    train(torch.optim.SGD(model.parameters(), 0.5), out, loss)
    return model


@program
def doubled_in_place(out):
    before, after = mlp(32, 256, 256, 64), mlp(64, 256, 256, 8)

    def loss():
        h = before(torch.randn(512, 32)) + 1
        return F.mse_loss(after(Doubled.apply(h)), torch.randn(512, 8))

    model = nn.ModuleList([before, after])
    train(torch.optim.Adam(model.parameters(), 1e-3), out, loss)
    return model


@program
def saved_and_written_through_a_view(out):
    """Plain PyTorch's backward pass raises where a Function has saved what was written to since."""
    model = nn.ModuleList([mlp(32, 256, 256, 64), mlp(64, 256, 256, 8)])
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(STEPS):
        h = model[0](torch.randn(512, 32))
        rounded = Rounded.apply(h)
        with torch.no_grad():
            (h if step == 1 else h.view(-1)[: 512 * 32]).mul_(2)
        loss = F.mse_loss(model[1](rounded), torch.randn(512, 8)) + h.pow(2).mean()
        optimizer.zero_grad()
        try:
            loss.backward()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            assert "modified by an inplace operation" in str(error), error
            out(torch.ones(()))
            optimizer.zero_grad()
        optimizer.step()
    return model


@program
def two_passes_over_one_graph(out):
    body, heads = mlp(32, 256, 256, 64), nn.ModuleList([mlp(64, 128, 8), mlp(64, 128, 8)])
    model = nn.ModuleList([body, heads])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        h = Rounded.apply(body(torch.randn(512, 32)))
        losses = [F.mse_loss(head(h), torch.randn(512, 8)) for head in heads]
        optimizer.zero_grad()
        losses[0].backward(retain_graph=True)
        losses[1].backward()
        out(*losses)
        optimizer.step()
    return model


@program
def passes_that_accumulate(out):
    model = nn.ModuleList([mlp(32, 256, 256, 64), mlp(64, 256, 8)])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            loss = F.mse_loss(model[1](Rounded.apply(model[0](torch.randn(512, 32)))), torch.randn(512, 8)) / 3
            loss.backward()
            out(loss)
        optimizer.step()
    return model


if __name__ == "__main__":
    main(PROGRAMS)
