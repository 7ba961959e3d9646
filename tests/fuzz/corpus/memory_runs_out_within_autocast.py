"""A layer of single precision outside of autocast, and memory that runs out within: the test of its rule ran backward in bfloat16, and the sum over rows was another. And a layer made of others, within."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from functions import autocast


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float32)
    m0 = nn.Linear(8, 8)
    m1 = nn.GRU(2, 4, batch_first=True, bidirectional=True, num_layers=2)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(6, 8))
        h0 = m0(x0)
        with autocast():
            h1 = m1(h0.view(6, 4, 2))[0]
            h2 = h1.flatten(1) @ h1.flatten(1).mT * 0.2
            l0 = (h1 + 0.01).norm() + h0.square().mean() + h2.float().mean() * 0.1
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
