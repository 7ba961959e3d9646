"""An index picks one row of two, so a micro-batch has none: binary_cross_entropy_with_logits writes to a tensor like its target, which was taken to be broadcast."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(95626707353)
    w0 = nn.Parameter(torch.randn(4, 8) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([w0])
    for step in note.steps(3):
        x0 = note.data(torch.randn(2, 4))
        h0 = (x0 @ w0).tanh().exp()
        h1 = (h0 * h0).sigmoid()
        h5 = h1[torch.combinations(torch.arange(2))[:, 0]]
        l0 = F.binary_cross_entropy_with_logits(h5, torch.rand(1, 8))
        l0.backward()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
