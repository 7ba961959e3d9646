"""A tensor that is not split looked at one that a conversion made again in other memory: koila's own error where it was read."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.manual_seed(95626708610)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(8, 8) * 0.5)
    w1 = nn.Parameter(torch.randn(8) * 0.5)
    w2 = nn.Parameter(torch.randn(8) * 0.5)
    m0 = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    m1 = nn.RMSNorm(8)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters(), w0, w1, w2])
    o0 = torch.optim.AdamW(trained, lr=0.01, eps=1e-3, fused=True)
    for step in note.steps(2):
        x0 = note.data(torch.randn(10, 5, 8))
        h0 = x0 * (x0 > x0).double()
        h1 = h0.quantile(0.4, dim=-3, keepdim=True)
        h2 = h0.reshape(-1, 8)
        h3 = torch.clone(h0)
        h4 = h2.argsort(-2).argsort(-2).double()
        h5 = torch.addmm(w1, h2, w0, beta=0.5)
        h7 = h4.diagonal(dim1=-1, dim2=-2)
        h8 = m1(h5)
        h9 = (h7.detach() * 3).long().clamp(0, 6)
        l0 = h5.flatten(1).max(0).values.mean()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
