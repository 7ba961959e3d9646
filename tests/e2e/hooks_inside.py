"""Small training programs with hooks on tensors inside their steps, each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

    koila run --ladder 0,1 -- python tests/e2e/hooks_inside.py NAME...
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from under_budgets import STEPS, Programs, main, train

PROGRAMS = program = Programs()
program.shares = {"of_two_losses": (0.8, 0.7, 0.6)}  # where a hook has run in the first of two passes over one graph, that pass cannot go on


def mlp(*sizes):
    layers = [layer for inside, outside in zip(sizes, sizes[1:]) for layer in (nn.Linear(inside, outside), nn.GELU())]
    return nn.Sequential(*layers[:-1])


def two_halves():
    return nn.ModuleList([mlp(32, 256, 256, 64), mlp(64, 256, 256, 8)])


def batch():
    return torch.randn(512, 32), torch.randn(512, 8)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


@program
def looked_at(out):
    model = two_halves()

    def loss():
        x, y = batch()
        h = model[0](x)
        h.register_hook(lambda gradient: out(gradient.norm(), gradient[7]))
        return F.mse_loss(model[1](h), y)

    train(sgd(model), out, loss)
    return model


@program
def clipped(out):
    """By the norm of the whole batch's gradient."""
    model = two_halves()

    def loss():
        x, y = batch()
        h = model[0](x)
        h.register_hook(lambda gradient: gradient / (1 + 100 * gradient.norm()))
        return F.mse_loss(model[1](h), y)

    train(sgd(model), out, loss)
    return model


@program
def retained(out):
    """The program reads the gradient after backward, as Grad-CAM does."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 64, 10))
    optimizer = sgd(model)
    for _ in range(STEPS):
        maps = model[:5](torch.randn(48, 3, 16, 16))
        maps.retain_grad()
        loss = F.cross_entropy(model[5:](maps), torch.randint(10, (48,)))
        optimizer.zero_grad()
        loss.backward()
        weights = maps.grad.mean((2, 3), keepdim=True)
        out(loss, (weights * maps.detach()).sum(1).relu().mean((1, 2)))
        optimizer.step()
    return model


@program
def dropped(out):
    """The hooked tensor is gone when its hook is called."""
    model = two_halves()

    def loss():
        x, y = batch()
        h = model[0](x).tanh()
        h.register_hook(lambda gradient: gradient.clamp(-1e-4, 1e-4))
        h = h * 1.5 + 1
        return F.mse_loss(model[1](h), y)

    train(sgd(model), out, loss)
    return model


@program
def read_by_two(out):
    model = nn.ModuleList([mlp(32, 256, 64), mlp(64, 256, 64), mlp(64, 256, 8)])

    def loss():
        x, y = batch()
        h = model[0](x)
        h.register_hook(lambda gradient: gradient * 0.5)
        h = h + model[1](h)
        return F.mse_loss(model[2](h), y) + 0.1 * h.pow(2).mean()

    train(sgd(model), out, loss)
    return model


@program
def every_layer(out):
    """As a program does that looks for vanishing gradients, by hooks on modules."""
    model = mlp(32, 256, 256, 256, 256, 8)
    for module in model:
        module.register_forward_hook(lambda _, inputs, output: output.register_hook(lambda gradient: out(gradient.abs().mean())) and None)

    def loss():
        x, y = batch()
        return F.mse_loss(model(x), y)

    train(sgd(model), out, loss)
    return model


@program
def taken_back(out):
    """One hook is removed before the backward pass, and one by itself."""
    model = two_halves()

    def loss():
        x, y = batch()
        h = model[0](x)
        gone = h.register_hook(lambda gradient: gradient * 100)
        once = h.register_hook(lambda gradient: (once.remove(), gradient * 0.5)[1])
        h.register_hook(lambda gradient: out(gradient.norm()))
        gone.remove()
        return F.mse_loss(model[1](h), y)

    train(sgd(model), out, loss)
    return model


@program
def after_a_write(out):
    """Hooked once it has been written to in place."""
    model = two_halves()

    def loss():
        x, y = batch()
        h = F.relu(model[0](x), inplace=True)
        h.register_hook(lambda gradient: out(gradient.norm()))
        return F.mse_loss(model[1](h), y)

    train(sgd(model), out, loss)
    return model


@program
def of_a_view(out):
    model = two_halves()

    def loss():
        x, y = batch()
        h = model[0](x)
        half = h[:, :32]
        half.register_hook(lambda gradient: gradient * 2)
        return F.mse_loss(model[1](torch.cat([half.tanh(), h[:, 32:]], 1)), y)

    train(sgd(model), out, loss)
    return model


@program
def accumulated(out):
    model, optimizer = two_halves(), None
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            x, y = batch()
            h = model[0](x)
            h.retain_grad()
            h.register_hook(lambda gradient: gradient * 3)
            (F.mse_loss(model[1](h), y) / 2).backward()
            out(h.grad)
        optimizer.step()
    return model


@program
def of_the_loss(out):
    model = two_halves()

    def loss():
        x, y = batch()
        value = F.mse_loss(model[1](model[0](x)), y)
        value.register_hook(lambda gradient: gradient * 0.25)
        return value * 1.0

    train(sgd(model), out, loss)
    return model


@program
def of_two_losses(out):
    """One graph, two passes: the hook is called in both."""
    model = two_halves()
    optimizer = sgd(model)
    for _ in range(STEPS):
        x, y = batch()
        h = model[0](x)
        h.register_hook(lambda gradient: out(gradient.norm()))
        prediction = model[1](h)
        optimizer.zero_grad()
        F.mse_loss(prediction, y).backward(retain_graph=True)
        (0.1 * prediction.abs().mean()).backward()
        out(prediction)
        optimizer.step()
    return model


if __name__ == "__main__":
    main(PROGRAMS)
