"""Tensors that the program looks at in another way after unsqueeze_, t_, transpose_ and the like, while what was made before is still read."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(12, 6) * 0.5)
    w1 = nn.Parameter(torch.randn(6, 6) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([w0, w1])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(6, 2, 12))
        h0 = torch.bmm(x0, w0.expand(6, -1, -1))
        h1 = h0.tanh()
        h0.unsqueeze_(0)
        h2 = torch.tensordot(h0, w1, dims=1)
        h3 = (h1 * 2).sum(1)
        h4 = h3 * 0.7
        h3.t_()
        h5 = h3 * 0.5
        h3.t_()
        h6 = (h3 + h4) @ w1
        h6.unsqueeze_(1).mul_(0.5)
        h7 = h6 * 2
        h6.squeeze_(1)
        h8 = h1 * 1.5
        h9 = h8.sum((1, 2))
        h8.transpose_(0, 2)
        h8.add_(1)
        h10 = h8.swapaxes(0, 2).sin()
        h10.swapaxes_(1, 2)
        l0 = -(h0.softmax(-1) * h0.log_softmax(-1)).sum(-1).mean() + h2.square().mean()
        l1 = h5.square().mean() + h7.mean() + h6.abs().mean() + (h9 + h8.mean((0, 1))).square().mean() + h10.mean()
        note.value('loss', l0.detach())
        o0.zero_grad()
        (l0 + l1).backward()
        note.value('loss', l1.detach())
        note.value('h', h8.detach().sum((0, 1)))
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
