"""A re-entrant checkpoint accumulates into weights that a part outside of it has as well, and what was before it ran out of memory."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


def program(note):
    torch.manual_seed(8)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 9))
    m1 = nn.Sequential(nn.Linear(9, 64), nn.Tanh(), nn.Linear(64, 9))
    m2 = nn.Linear(9, 3)
    net = nn.ModuleList([m0, m1, m2])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(29, 9))
        l0 = m2(checkpoint(m0, m1(m0(x0)), use_reentrant=True)).square().mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})
