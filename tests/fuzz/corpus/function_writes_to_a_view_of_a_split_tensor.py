"""An autograd.Function writes in place to a view (mark_dirty) in a step that runs in micro-batches: the base is another one afterwards, with another graph."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from functions import Marked


def program(note):
    torch.manual_seed(1119981)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(11, 4)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x0 = note.data(torch.randn(30, 11))
        h0 = m0(x0)
        if step == 1:
            Marked.apply(h0.select(-1, 1))
            h1 = h0[:, 0]
        else:
            h1 = Marked.apply(h0.select(-1, 0))
        h2 = h0.unflatten(-1, (-1, 2))
        l0 = (h1 * 0.3).sum() + F.mse_loss(h2, torch.ones_like(h2)) + h1.square().mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
