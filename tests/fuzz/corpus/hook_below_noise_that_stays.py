"""A hook on what both the split part and a graph that stays read: noise that is gone keeps the graph that it went into, and a hook on the split part's tensor saw that part of the gradient alone, in silence."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(53)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.tensor(0.8))
    m0 = nn.Linear(4, 4)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters(), w0])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        h0 = torch.lerp(w0, note.data(torch.randn(26, 3, 4)), 0.3)
        h0.register_hook(lambda gradient: note.value("hook", gradient.sum()))
        h1 = m0(h0.amin(-2))
        _, h2 = torch.std_mean(h1 + 0.1 * torch.randn_like(h1), 0)
        h3 = torch.lerp(h2, h1, 0.3)
        l0 = F.cross_entropy(F.normalize(h3, dim=1) @ F.normalize(h3, dim=1).T * 3, torch.arange(26)) + h2.logsumexp(0)
        note.value("loss", l0.item())
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
