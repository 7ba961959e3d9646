"""PyTorch comes by no tensor that leads to none of the inputs of autograd.grad. A region stands for such tensors and for others, and called their hooks."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(7, 13)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(21, 7)).requires_grad_()
        h0 = m0(x0).tanh()
        h1 = (x0 * 1.5).sin()
        note.retain('retained', h1)
        h1.register_hook(lambda gradient: note.value('hook', gradient))
        h2 = h1.square() + 1
        l0 = h0.square().mean() + h2.log().mean()
        for p, g in zip(trained, torch.autograd.grad(l0, trained)):
            p.grad = g
        o0.step()
        note.state(net, trained, {})
