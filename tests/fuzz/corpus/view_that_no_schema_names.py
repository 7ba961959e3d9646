"""What broadcast_tensors() returns looks at its arguments, as its schema does not say: a write to one result did not show in the other."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    d0 = torch.randn(3, 12, 4, 3)
    m0 = nn.Linear(3, 5)
    trained = note.trained([*m0.parameters()])
    for step in note.steps(3):
        x0 = note.data(d0[step].clone())
        h0, h1 = torch.broadcast_tensors(x0, x0.select(2, 0).unsqueeze(2))
        h0.pow_(2)
        h2 = m0(h1)
        h3, h4 = torch.broadcast_tensors(h2, h2[..., :1])
        h3.mul_(0.5)
        l0 = h4.square().sum() + h2.mean()
        for p in trained: p.grad = None
        l0.backward()
        note.value('loss', l0)
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
