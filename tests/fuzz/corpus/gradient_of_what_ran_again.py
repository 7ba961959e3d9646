"""An operator that ran again hung on a value that had its memory already, and the region forgot that it did: silently, a part of the gradient was lost."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(779100)
    net = nn.Linear(4, 8)
    trained = note.trained([*net.parameters()])
    for step in note.steps(2):
        x = note.data(torch.randn(8, 4))
        h = net(x)
        double = h * 2
        noisy = torch.randn(8, 8) * h.exp() + h
        note.keep('double', double.sum(0))
        first = torch.slice_scatter(noisy, noisy[:1] * 3, 0, 0, 1)
        loss = F.cross_entropy(first, torch.randint(8, (8,)), reduction='sum')
        other = F.multilabel_soft_margin_loss(first, (torch.rand(8, 8) > 0.5).float())
        loss.backward()
        note.value('other', other.detach())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
