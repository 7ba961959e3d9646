"""A part of a sum over the batch was written to with rows of the batch: its value came out of the region without the sum that it is a part of, and silently the gradient went past what was written."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(913707)
    torch.set_default_dtype(torch.float64)
    net = nn.GRU(3, 4)
    trained = note.trained([*net.parameters()])
    for step in note.steps(2):
        x = note.data(torch.randn(2, 4, 3))
        h = net(x)[0]
        together = (h.mT @ h * 0.2).clone()
        together[..., :1].copy_(h[..., :1])
        loss = together.pow(2).mean() + h.sum()
        loss.backward()
        note.value('loss', loss.detach())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
