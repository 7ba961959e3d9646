"""A reshape of a part copies at the full batch, and is a view of one row: a write to it was one to the program's input."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05, momentum=0.8)
    for step in note.steps(2):
        x0 = note.data(torch.randn(8, 6, 4))
        h0 = m0(x0)
        rest = x0.split([1, 5], 1)[1]
        copy = rest.reshape(-1).view_as(rest)
        with torch.no_grad():
            copy.mul_(0.5)
        l0 = F.l1_loss(h0, torch.zeros(8, 6, 3)) + (copy.sum(-1) * h0[:, 1:].sum(-1)).mean()
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.detach())
        note.value('input', x0)
        o0.step()
        note.state(net, trained, {'copy': copy})
