"""What a region has read, and saves nothing of for backward, is written to through a view; plain PyTorch has no error there."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square, autocast


def program(note):
    torch.manual_seed(95578589626)
    torch.set_default_dtype(torch.float32)
    m0 = nn.ConvTranspose1d(3, 3, 2)
    w0 = nn.Parameter(torch.randn(7, 5) * 0.5)
    w1 = nn.Parameter(torch.randn(5) * 0.5)
    w2 = nn.Parameter(torch.tensor(0.8))
    w3 = nn.Parameter(torch.randn(1, 3) * 0.5)
    w4 = nn.Parameter(torch.randn(3, 3) * 0.5)
    w5 = nn.Parameter(torch.randn(3, 7, 7) * 0.5)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters(), w0, w1, w2, w3, w4, w5])
    o0 = torch.optim.Adam(trained, lr=0.01, eps=1e-3)
    for step in note.steps(2):
        x0 = note.data(torch.randn(5, 3, 6))
        h0 = m0(x0)
        h2 = h0.mean(0, keepdim=True).expand_as(h0)
        h7 = h2.reshape(-1).view_as(h2)
        h7.copy_(h7.detach())
        l0 = h7.flatten().logsumexp(0)
        l1 = h7.tanh().mean(0).sum()
        torch.autograd.backward([l0, l1])
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
