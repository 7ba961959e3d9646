"""A Function builds a graph of its own in forward and differentiates it in its backward. The pass within let go of a region that the pass around it still had to come by: a RuntimeError that plain has not."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.exp()


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, inner):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.result = Inner.apply(ctx.x * 0.1) if inner else (ctx.x * 0.1).exp()
        return ctx.result.detach()

    @staticmethod
    def backward(ctx, g):
        return torch.autograd.grad(ctx.result, ctx.x, g)[0], None


def program(note):
    torch.manual_seed(103)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for i in note.steps(4):
        x, y = torch.randn(40 + i, 8), torch.randint(0, 3, (40 + i,))
        h = model[:2](x)
        h = Outer.apply(h, i % 2 == 1) if i < 3 else Outer.apply(Outer.apply(h, False).sin(), True)
        loss = F.cross_entropy(model[2:](h), y)
        note.value("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})
        del loss, h
