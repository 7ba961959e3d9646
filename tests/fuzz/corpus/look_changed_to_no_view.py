"""as_strided_() makes a view that no rule splits, resize_() makes no view, and transpose_() changes a tensor that a region has read from outside."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from functions import Halves


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    m0 = nn.GroupNorm(1, 6)
    w0 = nn.Parameter(torch.randn(6, 8) * 0.5)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters(), w0])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        b0 = 13 if step < 1 else 5
        x0 = note.data(torch.randn(b0, 6))
        h0 = (x0 @ w0).tanh()
        h1 = h0 * 2
        h2 = h1 * 3
        h1.as_strided_((8, b0), (1, 8))
        h3 = h0.detach() * 3
        h4 = h3.cos()
        h3.resize_(b0 // 2, 8)
        h5 = Halves.apply(m0(x0), 0.7)[0]
        h6 = torch.hstack([h5, x0])
        h5.transpose_(0, -1)
        l0 = h2.square().mean() + (h1 * 0.3).exp().mean() + (h0 * h4).sum(1).mean()
        l1 = ((h6.flatten(1).var(0) + 1e-2).sqrt()).mean() + h6.square().mean() + h5.sum(0).square().mean()
        note.value('loss', l0.detach())
        note.value('h', h3.sum())
        o0.zero_grad()
        (l0 + l1).backward()
        note.value('loss', l1.detach())
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
