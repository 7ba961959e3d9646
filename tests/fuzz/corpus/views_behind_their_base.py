"""A write to the base of views that nobody reads any more: to ask these for their graph is an error that plain PyTorch does not have."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square, autocast


def program(note):
    torch.manual_seed(3002587)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    m1 = nn.Sequential(nn.Linear(1, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 60))
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05, momentum=0.9, foreach=True)
    for step in note.steps(2):
        x0 = note.data(torch.randn(6, 3))
        h0 = m0(x0)
        h1, h2, *_ = h0.split([1, h0.shape[0] - 1], 0)
        h0.clamp_(-1, 1)
        h3 = (h0 + 0.1 * torch.arange(4).view(1, -1).double()).std(1, keepdim=True)
        h5 = torch.zeros_like(h3).masked_scatter(h3 > 0, (h3 * 0.5))
        h6 = h3.max()
        h8 = torch.relu(h6)
        h9 = m1(h5)
        h10 = h3 * 1.0
        h10[1:].add_(0.2)
        h11 = (h10 * 1.5).sin()
        l0 = F.mse_loss(h9, torch.randn(6, 60), reduction='none').mean()
        for p, g in zip(trained, torch.autograd.grad(l0, trained, allow_unused=True)):
            p.grad = g
        note.value('loss', l0)
        if step % 2 == 1:
            o0.step()
            o0.zero_grad()
        net.eval()
        with torch.no_grad():
            note.value('evaluated', m1(torch.ones(5, 1)))
        net.train()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
