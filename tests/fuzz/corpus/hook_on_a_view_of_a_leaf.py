"""A view of what the step began with is taken as it is by a conversion, and its hooks had been taken off it: they were not called any more."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(1, 16)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(31)).requires_grad_()
        h0 = x0[:, None]
        note.retain('retained', h0)
        h0.register_hook(lambda gradient: gradient * 3)
        l0 = m0(h0).tanh().exp().log1p().square().mean()
        o0.zero_grad()
        l0.backward()
        note.value('of data', x0.grad)
        o0.step()
        note.state(net, trained, {})
