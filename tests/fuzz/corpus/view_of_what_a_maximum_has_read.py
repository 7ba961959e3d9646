"""A conversion in backward took the program's own view of a value whose stage had ended as it was: its graph was the old one, which is freed."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(95626708999)
    w0 = nn.Parameter(torch.randn(3, 5) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([w0])
    for step in note.steps(2):
        x0 = note.data(torch.randn(24, 3, 3))
        h0 = torch.bmm(x0, w0.expand(24, -1, -1))
        h1 = h0.max()
        h3 = h0.movedim(1, -1)
        l1 = h3.pow(2).mean()
        ((h1 + l1) / 2).backward()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
