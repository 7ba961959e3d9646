"""A softmax over the batch lies in memory in the order of its dimensions, and its argument does not: a view of it, and the noise of its shape, go by that."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(6, 12) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([w0])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x0 = note.data(torch.randn(12, 4, 6))
        h0 = (x0 @ w0).transpose(0, 1).contiguous().transpose(0, 1)
        h1 = h0.softmax(0)
        h2 = h1.view(-1) * 1.5
        h3 = (h0.mT * 1.1).log_softmax(0)
        h4 = h3.view(12, -1).tanh() * torch.randn_like(h3).view(12, -1)
        h5 = h1 + torch.randn_like(h1)
        l0 = h2.square().sum() + h4.mean() + h5.sin().mean()
        note.value('stride', [*h1.stride(), *h3.stride()])
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.item())
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
