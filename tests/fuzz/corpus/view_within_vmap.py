"""Memory runs out within vmap: a view that the step reads held its base, and the base the step."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(4, 4)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    for step in note.steps(2):
        x0 = note.data(torch.randn(3, 4))
        h0 = torch.vmap(lambda row: row + row.sum())(x0)
        l0 = m0(h0).square().mean()
        note.value('loss', l0.detach())
        l0.backward()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
