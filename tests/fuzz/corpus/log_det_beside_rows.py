"""A flow: the data is let go of, and the logarithm of what scales it is added to sums over rows. The sums are read twice, once by what cannot be made again: what its graph had saved had lost its memory."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.rand(1, 12, 1) + 1)
    w1 = nn.Parameter(torch.rand(1, 12, 1))
    net = nn.ParameterList([w0, w1])
    trained = note.trained([w0, w1])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x0 = note.data(torch.rand(40, 12, 4)).view(40, 12, 4)
        x0 = w0 * (x0 + w1)
        h1 = torch.log(w0).sum()
        h2 = torch.sigmoid(x0[:, :6])
        h1 = h1 + h2.sum((1, 2))
        l0 = (h1 + h2.sum((1, 2))).mean()
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.item())
        o0.step()
        note.state(net, trained, {})
