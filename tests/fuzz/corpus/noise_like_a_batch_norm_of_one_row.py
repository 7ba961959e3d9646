"""A batch norm of what is transposed is contiguous, which the meta device does not say and one row does not show: noise like it was drawn in another order."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    m0 = nn.GRU(8, 4, batch_first=True)
    m1 = nn.BatchNorm1d(4)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x0 = note.data(torch.randn(8, 4, 8))
        h0 = m1(m0(x0)[0])
        note.value('strides', list(h0.stride()))
        h1 = h0 * (torch.rand_like(h0) < 0.7) / 0.7
        l0 = (1 - h1).clamp(min=0).mean() + h1.square().mean()
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.detach())
        o0.step()
        note.state(net, trained, {})
