"""A gradient with a graph (a penalty on a slope) beside tensors with hooks: one that it does not come by, one that it comes by, and a hook that waits for the gradients of all parameters."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(66)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(19, 42), nn.Tanh(), nn.Linear(42, 35), nn.Tanh(), nn.Linear(35, 8))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x, y = torch.randn(39, 19), torch.randint(8, (39,))
        norms = []
        h = m0[:2](x)
        if step < 2:
            h.register_hook(lambda g: g * 0.5)
            slope_of = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(m0(slope_of).sum(), slope_of, create_graph=True)
            loss = (slope.norm(dim=1) - 1).square().mean() * 0.1 + F.cross_entropy(m0[2:](h), y)
        else:
            h.retain_grad()
            loss = F.cross_entropy(m0[2:](h), y)
            try:
                (slope,) = torch.autograd.grad(loss, m0[0].weight, create_graph=True)
            except torch.OutOfMemoryError:
                h.grad = None  # it has a graph that hangs on h: plain PyTorch keeps both for ever
                raise
            loss = loss + slope.square().sum()
        note.value("loss", loss.item())
        o0.zero_grad()
        every = torch.autograd.graph.register_multi_grad_hook(trained, lambda grads, norms=norms: norms.append(torch.stack([g.norm() for g in grads])))
        try:
            loss.backward()
        except torch.OutOfMemoryError:
            h.grad = None
            raise
        finally:
            every.remove()
        note.value("norms", float(sum(n.sum() for n in norms)))
        if h.grad is not None:
            note.value("inner", h.grad.sum().item())
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
