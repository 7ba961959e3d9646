"""An activation was made a leaf, which no operator shows, before memory ran out: it was given the value's place in the step, and no gradient."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(3005360)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(8, 3)
    m1 = nn.Linear(3, 3)
    w0 = nn.Parameter(torch.randn(3, 60) * 0.1)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters(), w0])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(16, 8))
        h0 = m0(x0)
        h1 = h0.detach().requires_grad_()
        h2 = h0.clone().detach()
        h2.requires_grad_()
        h3 = torch.tanh(m1(h0) @ w0).exp() @ w0.t()
        h4 = (h3.sin() + h1 * h2).cos()
        o0.zero_grad()
        (h4.square().mean() + h1.sum()).backward()
        h2.square().sum().backward()
        note.value('inner', h1.grad); note.value('copied', h2.grad); note.value('leaves', [h1.is_leaf, h2.is_leaf, h1.requires_grad, h2.requires_grad])
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
