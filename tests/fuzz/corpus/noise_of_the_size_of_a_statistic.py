"""Noise that is drawn in place into memory of the size of a statistic over the batch, with a gradient and without: made again with the statistic, it would be drawn again."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(41)
    torch.set_default_dtype(torch.float64)
    first, last = nn.Linear(12, 40), nn.Linear(40, 6)
    net = nn.ModuleList([first, last])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        h = first(note.data(torch.randn(36, 12))).tanh()
        spread = h.var(0)
        noise = torch.empty_like(spread).normal_()
        kept = (spread * 1.5).exponential_(0.7) if step == 2 else torch.zeros_like(spread).bernoulli_(0.5)
        h = h + noise * spread.sqrt() + kept
        loss = last(h.sin()).square().mean() + (spread * kept).sum()
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
