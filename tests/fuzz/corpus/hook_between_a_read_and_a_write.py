"""A hook is put on after a first reader and before a write in place: it has the gradient of both, and a region only that of the write."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    m0 = nn.LSTMCell(6, 7)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(34, 2, 6))
        h0 = m0(x0[:, 0])
        h1 = m0(x0[:, 1], h0)[0]
        h2 = torch.stack([h0[0], h1], 1)
        h1.register_hook(lambda gradient: note.value('hook', gradient))
        h1.relu_()
        l0 = h1.square().mean() + h2.exp().mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})
