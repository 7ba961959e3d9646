"""broadcast_tensors() of a tensor of one row was handed out with one row, where a micro-batch had one."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    m0 = nn.BatchNorm1d(4)
    w0 = nn.Parameter(torch.randn(4) * 0.5)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters(), w0])
    for step in note.steps(2):
        x1 = note.data(torch.randn(8, 4))
        h0, h1 = torch.broadcast_tensors(x1, x1.select(0, 0).unsqueeze(0))
        note.value('sizes', list(h1.shape))
        h2 = torch.logaddexp(h0, h0)
        h3 = m0(h1)
        h4 = torch.add(w0, h2, alpha=0.3)
        note.value('sum', (h3.sum() + h4.sum()).item())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
