"""A micro-batch's product of two tensors that lie transposed in memory lies otherwise than the full batch's, and kron() takes a view of it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(904964)
    torch.set_default_dtype(torch.float64)
    m0 = nn.RMSNorm(4)
    m1 = nn.BatchNorm1d(4)
    w0 = nn.Parameter(torch.randn(4, 4) * 0.5)
    w1 = nn.Parameter(torch.randn(4) * 0.5)
    w2 = nn.Parameter(torch.randn(4) * 0.5)
    w3 = nn.Parameter(torch.randn(4) * 0.5)
    w4 = nn.Parameter(torch.randn(3, 4, 4) * 0.5)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters(), w0, w1, w2, w3, w4])
    o0 = torch.optim.RMSprop(trained, lr=0.01, eps=1e-2)
    for step in note.steps(2):
        x0 = torch.randint(7, (24, 3,))
        x1 = torch.randint(7, (24, 4,))
        x2 = note.data(torch.randn(24, 4))
        h0 = m0(x2)
        h1 = m1(h0)
        h2 = torch.fft.rfft(x2, dim=-2).abs()
        h3 = torch.xlogy(h1.abs(), h0.abs() + 0.5)
        h4 = torch.abs(h2)
        h6 = torch.kron(h2, h4)
        h7 = torch.rad2deg(h3)
        note.value('norm', h7.detach().norm().item())
        h9 = F.silu(h7)
        h10 = h6.clone().detach()
        note.value('unique', len(torch.unique((h9 * 4).round())))
        l0 = (1 - ((h7.flatten(1).var(0) + 1e-2).sqrt())).relu().mean() + h7.square().mean()
        note.value('loss', l0.detach())
        o0.zero_grad(set_to_none=False)
        for p, g in zip(trained, torch.autograd.grad(l0, trained, allow_unused=True)):
            p.grad = g
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
