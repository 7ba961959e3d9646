"""A row of zeros is written to through a view that has its value already. Nothing of it has a gradient before, and the base was then read without the one that it has after."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(15) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([w0])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        h0 = torch.minimum(note.data(torch.randn(19, 2, 15)).split([1, 18], 0)[1], w0)
        h1 = torch.zeros_like(h0)
        h2 = h1[..., 1:]
        h2.copy_(h0[..., 1:] * 1.5)
        h3 = (h1 * 2).sin() + h0
        l0 = h1.pow(2).mean() + h3.square().mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})
