"""A cell gives two results. One is written to after it was read, has another node since, and a hook that no gradient comes by: it was called with None."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    m0 = nn.LSTMCell(9, 9)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(14, 5, 9))
        h0 = (torch.zeros_like(x0[:, 0]),) * 2
        h1 = []
        for t in range(x0.shape[1]):
            h0 = m0(x0[:, t], h0)
            h1.append(h0[0])
        h2 = h1[-1]
        h3 = torch.stack(h1, 1)
        h2.mul_(0.7)
        h2.register_hook(lambda gradient: gradient * 0.5)
        l0 = h3.square().mean() - (h3.softmax(-1) * h3.log_softmax(-1)).sum(-1).mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})
