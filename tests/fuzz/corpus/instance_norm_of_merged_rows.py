"""The rows that an instance norm sees are those of the batch times another dimension that was merged with it: its running statistics are means over all of them."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    m0 = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    m1 = nn.InstanceNorm2d(3, track_running_stats=True)
    m2 = nn.Linear(6, 5)
    net = nn.ModuleList([m0, m1, m2])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x0 = note.data(torch.randn(6, 5, 4, 6))
        x1 = note.data(torch.randn(6, 3, 2, 6))
        h0 = m0((x0 * 1.5).flatten(0, 1))
        h1 = m2(h0).unflatten(0, (6, 5)).tanh()
        h2 = m1(x1.sin().view(2, 3, 3, 2, 6).flatten(0, 1))
        l0 = h1.square().mean() + (m2(h2) * 0.3).sum()
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.item())
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
