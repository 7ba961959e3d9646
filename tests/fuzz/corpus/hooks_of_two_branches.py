"""PyTorch calls the hooks of what was made last first. Those of a region's values were called in the order in which they had been put on."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(9, 14)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        h0 = m0(note.data(torch.randn(23, 9))).tanh()
        h1 = torch.hardshrink(h0, 0.1)
        h1.register_hook(lambda gradient: note.value('first', gradient.sum()) or note.value('hook', gradient * 2))
        h2 = h0.exp() * 0.2
        h2.register_hook(lambda gradient: note.value('hook', gradient))
        o0.zero_grad()
        (h1.tanh().mean() + h2.square().mean()).backward()
        o0.step()
        note.state(net, trained, {})
