"""A value and its copy were put together in passes of different sizes when memory ran out between them, and were not equal to the bit."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(931757)
    torch.set_default_dtype(torch.float64)
    m0 = nn.RNN(8, 4)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    for step in note.steps(2):
        x0 = note.data(torch.randn(4, 16, 8))
        h0 = m0(x0)[0].reshape(-1, 4)
        note.value('equal', torch.equal(h0, h0.clone()))
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
