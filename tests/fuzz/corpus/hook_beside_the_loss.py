"""A hook on a tensor that no loss descends from was called with None."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(4, 6)
    m1 = nn.Linear(6, 3)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    for step in note.steps(3):
        x0 = note.data(torch.randn(8, 4))
        h0 = m0(x0)
        h1 = h0.tanh()
        h1.register_hook(lambda gradient: note.value('hook', gradient * 0.5))
        h2 = h0 * 1
        h2.retain_grad()
        l0 = m1(h0.relu()).square().mean()
        net.zero_grad()
        l0.backward()
        note.value('loss', l0)
        note.value('retained', str(h2.grad))
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
