"""A write through a view gives the base another node, and PyTorch moves what retain_grad() has put on it there under the number of the region's output, which that node does not have: a crash."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(7, 7)
    m1 = nn.Linear(7, 7)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(18, 7))
        h0 = m0(x0).tanh()
        h1 = m1(x0) + 1
        h2 = torch.nn.functional.threshold(h0, 0.1, 0.3)
        h2.register_hook(lambda gradient: gradient * 1.5)
        note.retain('retained', h1)
        note.retain('retained', h2)
        h2[..., 0] = 0
        h1.select(1, 2).mul_(0.5)
        h2.register_hook(lambda gradient: gradient / (1 + gradient.norm()))
        l0 = h2.square().mean() + (h1 * h0).mean()
        note.value('loss', l0.detach())
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})
