"""An autograd.Function has read a tensor that is written to in place afterwards: its gradient is one of before the write."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from functions import Identity


def program(note):
    torch.manual_seed(1121151)
    torch.set_default_dtype(torch.float64)
    m0 = nn.RMSNorm(10)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    for step in note.steps(2):
        x0 = note.data(torch.randn(17, 2, 10))
        h0 = m0(x0)
        h1 = Identity.apply(h0)
        F.relu(h0, inplace=True)
        l0 = h1.flatten().logsumexp(0)
        l0.backward()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
