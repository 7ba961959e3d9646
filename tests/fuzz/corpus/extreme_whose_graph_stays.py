"""A noise that is added whole keeps the graph of a largest entry, whose backward looks for its result among its operands. These were made again a row at a time, with other roundings, and the gradient was 0 / 0."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    m0 = nn.LSTM(6, 4, bidirectional=True)
    m1 = nn.Linear(8, 8)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.Adam(trained, lr=0.01, eps=1e-3, foreach=True)
    for step in note.steps(2):
        note.data(torch.randn(3, 10, 6))
        note.data(torch.randn(10, 6))
        x2 = note.data(torch.randn(10, 5, 6))
        h0 = m0(x2)[0]
        h1 = x2.select(-2, 0)
        h3 = torch.cat([row[None] for row in h0])
        h4 = torch.flipud(h1)
        h6 = h3.amax(0, keepdim=True) - h3
        h7 = torch.zeros(10 * 6).put(torch.arange(10 * 6), h4.detach())
        h8 = h6 + torch.randn_like(h6) * 0.1
        h10 = h7.repeat(2, 1)
        h11 = m1(h0)
        h12 = h11.clone()
        h12.view(10, -1).add_(0.1)
        l0 = (1 - ((h12.flatten(1).var(0) + 1e-2).sqrt())).relu().mean() + h12.square().mean()
        l1 = (1 - h8).clamp(min=0).mean()
        note.value('loss', l0); note.value('loss', l1.item())
        o0.zero_grad(set_to_none=False)
        (l0 + l1).backward()
        note.value('loss', l0); note.value('loss', l1.item())
        o0.step()
        note.value('after', h3.detach().sum().item())
        note.state(net, trained, {})
