"""The slopes of `rrelu` in training are noise like any other: a split step drew them by the micro-batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(12)
    torch.set_default_dtype(torch.float64)
    net = nn.Sequential(nn.Linear(11, 43), nn.Linear(43, 19), nn.Tanh(), nn.Linear(19, 4))
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.1)
    for step in note.steps(3):
        x0 = note.data(torch.randn(53, 11))
        o0.zero_grad()
        h0 = F.rrelu(net[0](x0), training=True) if step < 2 else nn.RReLU(0.1, 0.4)(net[0](x0))
        l0 = F.cross_entropy(net[1:](h0), torch.randint(4, (53,)))
        l0.backward()
        note.value("loss", l0)
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
