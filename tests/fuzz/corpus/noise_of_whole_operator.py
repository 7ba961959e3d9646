"""Noise drawn at the full batch, beside operators that run again, was drawn once more: the generator moved, and the gradient met other noise."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    m0 = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=True)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    d0 = torch.randn(3, 10, 3, 4)
    for step in note.steps(3):
        x0 = note.data(d0[step].clone())
        h0 = m0(x0)
        h1 = m0(x0)
        h5 = (h1.mT @ h1 * 0.2 + 2 * torch.eye(4)).diagonal(dim1=-2, dim2=-1).sum(-1)
        h10 = (h5 * torch.randn_like(h5)).mean()
        net.zero_grad()
        h10.backward()
        note.value('loss', h10)
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
