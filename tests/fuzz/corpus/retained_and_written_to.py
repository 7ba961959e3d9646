"""A tensor whose gradient is retained was written to in place: PyTorch looks under the first output of its node for what retains it, and the node of a part of a step has many."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12))
    m1 = nn.Sequential(nn.Tanh(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05, momentum=0.8)
    for step in note.steps(3):
        x0 = note.data(torch.randn(24, 6))
        h0 = m0(x0) * 1.0
        note.retain('retained', h0)
        h1 = h0 * 2
        h0.clamp_(-0.1, 0.1)
        h2, h3 = m1(h0).chunk(2, 1)
        h3.register_hook(lambda gradient: note.value('hook', "none" if gradient is None else gradient))
        l0 = h2.square().mean() + (h1.mean() if step else h3.mean())
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.detach())
        o0.step()
        note.state(net, trained, {})
