"""Zeros were split into parts, and a differentiable value was written into the zeros: the parts' graphs are out of date, and asking for them is an error."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(8, 30)
    m1 = nn.Linear(30, 3)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(16, 8))
        h0 = m0(x0)
        z0 = h0.new_zeros(16, 30)
        parts = z0.split(10, 1)
        row = z0[:, :4]
        z0.add_(h0.tanh())
        h1 = (z0 @ torch.ones(30, 50)) * 0.1
        h2 = h1.sin().exp().cos()
        o0.zero_grad()
        (m1(z0.sigmoid()).square().mean() + h2.mean() + row.square().mean()).backward()
        note.value('parts', len(parts))
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
