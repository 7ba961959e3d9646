"""A norm that stays whole had saved a value of the step, and after a refusal the two held each other: the step's memory stayed."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(961194)
    torch.set_default_dtype(torch.float64)
    d0 = torch.randn(3, 3, 2, 3)
    m0 = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    w0 = nn.Parameter(torch.tensor(0.8))
    w1 = nn.Parameter(torch.randn(3) * 0.5)
    m1 = nn.GroupNorm(1, 2)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters(), w0, w1])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(d0[step].clone())
        h0 = x0 * x0
        h1 = m0(h0)
        h2 = h0[:3 // 2]
        h4 = (h0 * 2).round().mode(2, keepdim=True).values
        h5 = h2 * 1.0
        h5.pow_(2)
        h6 = torch.logaddexp(w1, h2)
        h7 = F.smooth_l1_loss(x0, h4, reduction='none')
        note.keep('h8', h6)
        h9 = m1(h5)
        l0 = (1 - ((h1.flatten(1).var(0) + 1e-2).sqrt())).relu().mean() + h1.square().mean()
        l1 = F.mse_loss(h9, torch.randn(1, 2, 3))
        l2 = h9.square().mean() / h9.detach().square().mean().add(0.1)
        note.value('loss', l0.detach()); note.value('loss', l1.item()); note.value('loss', l2.item())
        o0.zero_grad()
        (l0 + l1 + l2).backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
