"""Programs whose autograd.Functions work element by element: these run in micro-batches like any operator. See under_budgets.py.

    koila run --ladder 0,1 -- python tests/e2e/functions_by_rows.py NAME...
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from under_budgets import Programs, main, train

PROGRAMS = program = Programs()
program.shares = {name: (0.97, 0.85, 0.7, 0.55) for name in ("spikes", "binary_weights", "gradients_turned_round", "gates", "in_a_checkpoint", "clipped_to_learn")}

THRESHOLD = 0.5


class Spike(Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > THRESHOLD).to(u.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (u,) = ctx.saved_tensors
        return gradient / (1 + (math.pi * (u - THRESHOLD)).pow_(2))


class Sign(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        kept = gradient.clone()
        kept[x.abs() > 1] = 0
        return kept


class TurnedRound(Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.strength, None


class Gate(Function):
    @staticmethod
    def forward(ctx, x, y):
        gate = torch.sigmoid(y)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, gate = ctx.saved_tensors
        to_x = to_y = None
        if ctx.needs_input_grad[0]:
            to_x = gradient * gate
        if ctx.needs_input_grad[1]:
            to_y = gradient * x * gate * (1 - gate)
        return to_x, to_y


class Clipped(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.inside = (x >= low) & (x <= high)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.inside, None, None


spike, sign = Spike.apply, Sign.apply  # as programs do, before anything runs


def layers(*sizes):
    return nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))


@program
def spikes(out):
    """A spiking network through time."""
    net = layers(16, 48, 5)

    def loss():
        x, y, u, v, total = torch.randn(10, 48, 16), torch.randint(5, (48,)), 0, 0, 0
        for now in x:
            u = 0.9 * u + net[0](now)
            s = spike(u)
            u = u - s.detach()
            v = 0.9 * v + net[1](s)
            total = total + v
        return F.cross_entropy(total / len(x), y)

    train(torch.optim.Adam(net.parameters(), 1e-3), out, loss)
    return net


@program
def binary_weights(out):
    """Signs of activations and of weights, each with a gradient that comes through where they are small."""
    net = layers(32, 128, 128, 4)
    norms = nn.ModuleList(nn.BatchNorm1d(128) for _ in range(2))

    def loss():
        h, y = torch.randn(300, 32), torch.randint(4, (300,))
        for layer, norm in zip(net, norms):
            h = sign(norm(F.linear(h, sign(layer.weight) * layer.weight.abs().mean(1, keepdim=True), layer.bias)))
        return F.multi_margin_loss(net[-1](h), y)

    train(torch.optim.Adam([*net.parameters(), *norms.parameters()], 1e-3), out, loss)
    return nn.ModuleList([net, norms])


@program
def gradients_turned_round(out):
    """Two domains, and a strength that changes in each step."""
    net, label, domain = layers(16, 128, 64), nn.Linear(64, 4), layers(64, 64, 2)
    steps = iter(range(100))

    def features(x):
        return F.relu(net[1](F.relu(net[0](x))))

    def loss():
        strength = 2 / (1 + math.exp(-next(steps))) - 1
        a, b = features(torch.randn(200, 16)), features(torch.randn(200, 16) + 1)
        losses = [F.cross_entropy(label(a), torch.randint(4, (200,)))]
        for h, of in ((a, 0), (b, 1)):
            losses.append(F.cross_entropy(domain[1](F.relu(domain[0](TurnedRound.apply(h, strength)))), torch.full((200,), of)))
        return sum(losses)

    model = nn.ModuleList([net, label, domain])
    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def gates(out):
    net = layers(32, 128, 128, 128, 1)

    def loss():
        h = net[0](torch.randn(200, 32))
        for layer in net[1:3]:
            h = Gate.apply(h, layer(F.gelu(h)))
        return net[-1](h).pow(2).mean()

    train(torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), out, loss)
    return net


@program
def in_a_checkpoint(out):
    net = layers(32, 128, 128, 128, 1)

    def loss():
        h = net[0](torch.randn(200, 32))
        for layer in net[1:3]:
            h = checkpoint(lambda h, layer=layer: Gate.apply(F.gelu(layer(h)), sign(h)), h, use_reentrant=False)
        return net[-1](h).pow(2).mean()

    train(torch.optim.SGD(net.parameters(), 0.1), out, loss)
    return net


@program
def clipped_to_learn(out):
    """Clipped, written to in place behind it, read by a hook and by the program."""
    net = layers(32, 128, 128, 128, 3)

    def loss():
        h, y = torch.randn(200, 32), torch.randint(3, (200,))
        for layer in net[:-1]:
            h = Clipped.apply(layer(h), -1.0, 1).mul_(2)
        out(h[0].sum())
        return F.cross_entropy(net[-1](h), y)

    train(torch.optim.SGD(net.parameters(), 0.1), out, loss)
    return net


if __name__ == "__main__":
    main(PROGRAMS)
