"""A hooked tensor that no region makes is made again whole where memory runs out in backward, with another node: its hooks stayed with the old one, and what they do to the gradient was lost."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1030688)
    torch.set_default_dtype(torch.float64)
    m0 = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    m1 = nn.RNN(8, 4, batch_first=True, bidirectional=True, num_layers=2)
    m2 = nn.Embedding(7, 4)
    w0 = nn.Parameter(torch.tensor(0.8))
    net = nn.ModuleList([m0, m1, m2])
    trained = note.trained([*net.parameters(), w0])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(8, 2, 8))
        h0 = m0(x0)
        if h0.requires_grad:
            note.retain('retained', h0)
        h1 = m1(h0)[1]
        h2 = h0.clone()
        h2[..., 0] = 0
        h3 = h0.contiguous().as_strided((8, 2, 8), h0.contiguous().stride())
        h4 = h1.quantile(0.4, dim=0, keepdim=True)
        h0.register_hook(lambda gradient: gradient * 0.5)
        h6 = (x0.detach() * 3).long().clamp(0, 6)
        h7 = m2(h6 % 7)
        h8 = h4.mean((2, 0), keepdim=False)
        h9 = h1[torch.rand(4) > 0.01]
        h10 = h9.unsqueeze(-1) * h9.unsqueeze(-2)
        h11 = h8.select(0, 0)
        h13 = h10[..., 0, 0]
        h14 = torch.minimum(h13, h13)
        l0 = F.triplet_margin_loss(h14, h14.roll(1, 0), h14.flip(0))
        l1 = h13.mean()
        l2 = h13.square().mean() / h13.detach().square().mean().add(0.1)
        o0.zero_grad()
        (l0 + l1 + l2).backward()
        note.value('loss', l0); note.value('loss', l1); note.value('loss', l2)
        o0.step()
        note.state(net, trained, {})
