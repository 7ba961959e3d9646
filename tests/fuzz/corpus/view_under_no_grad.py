"""A view that was made under no_grad says that it requires grad, and hangs on nothing: the rule check gave the engine an empty root."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.ones(4, 3))
    w1 = nn.Parameter(torch.ones(3) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([w0, w1])
    for step in note.steps(2):
        x0 = note.data(torch.randn(12, 3))
        h0 = (x0 * w1).tanh()
        with torch.no_grad():
            h1 = h0.view(-1)
            h2 = w0.view(-1)[:3]
        l0 = (h1 * 2).sum() + h0.sum() + (x0 * h2).relu().mean()
        note.value('loss', l0.detach())
        l0.backward()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
