"""A codebook that is read through a view, and moves before backward: the copy that a step read counted as written to, and the step ended in an error."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(6, 4)
    net = nn.Module()
    net.m0 = m0
    net.register_buffer("codes", torch.randn(5, 4))
    trained = note.trained([*m0.parameters()])
    for step in note.steps(3):
        x0 = note.data(torch.randn(8, 6))
        h0 = m0(x0).tanh()
        h1 = net.codes.pow(2).sum(1) - 2 * h0 @ net.codes.t()
        h2 = F.embedding(h1.argmin(1), net.codes)
        with torch.no_grad():
            net.codes.mul_(0.9).add_(h0.mean(0), alpha=0.1)
        l0 = (h0 - h2).square().mean() + (h0 + (h2 - h0).detach()).square().mean()
        for p in trained: p.grad = None
        l0.backward()
        note.value('loss', l0)
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
