"""A backward pass that keeps its graph comes by the Functions of an earlier pass, or of a gradient that has a graph. What they had done when memory ran out was done twice: the weights' gradients of a
checkpoint written by hand were silently too large. A re-entrant checkpoint raised its own RuntimeError, since the rest of the pass was limited to some leaves."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, part):
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.part(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


def first_pass(way, loss, h):
    if way == 0:
        loss.backward(retain_graph=True)
    elif way == 1:
        return h + torch.autograd.grad(loss, h, create_graph=True)[0]
    elif way == 2:
        return h + torch.autograd.grad(loss, h, retain_graph=True)[0]
    return h


def program(note):
    torch.manual_seed(98)
    torch.set_default_dtype(torch.float64)
    trunk, wide = nn.Linear(12, 12), nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 12))
    heads = [nn.Linear(12, 4), nn.Sequential(nn.Linear(12, 60), nn.Tanh(), nn.Linear(60, 4)), nn.Linear(12, 4)]
    model = nn.ModuleList([trunk, wide, *heads])
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for i in note.steps(12):
        rows = 30 + 3 * (i % 5)
        x, y = torch.randn(rows, 12), torch.randint(0, 4, (rows,))
        optimizer.zero_grad()
        h = torch.tanh(trunk(x))
        h = Recomputed.apply(h, wide) if i % 4 in (0, 2) else h + checkpoint(wide, h, use_reentrant=True)
        h = first_pass((1, 0, 2, 3)[i % 4], F.cross_entropy(heads[0](h), y), h)
        loss = F.cross_entropy(heads[1](h), y)
        loss.backward(retain_graph=True)
        other = F.cross_entropy(heads[2](torch.sin(h)), y)
        other.backward(retain_graph=True)
        note.value("losses", loss.item() + other.item())
        del h, loss, other
        optimizer.step()
        note.state(model, trained, {})
