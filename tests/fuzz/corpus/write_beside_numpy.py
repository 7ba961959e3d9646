"""A value that NumPy may look at keeps its memory, and was written to in place for a second time."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(906602)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(12, 6) * 0.5)
    w1 = nn.Parameter(torch.randn(12) * 0.5)
    w2 = nn.Parameter(torch.randn(12) * 0.5)
    w3 = nn.Parameter(torch.randn(12, 8) * 0.5)
    w4 = nn.Parameter(torch.randn(8) * 0.5)
    w5 = nn.Parameter(torch.randn(8) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([*net.parameters(), w0, w1, w2, w3, w4, w5])
    for step in note.steps(3):
        x0 = note.data(torch.randn(12, 4, 6))
        h0 = F.linear(x0, w0)
        h1 = h0.median(1, keepdim=False).values
        h2 = h0 @ w3
        h2.clamp_(max=1).exp_()
        note.value('copy', h1)
        F.leaky_relu(h1, 0.1, inplace=True)
        h4 = F.binary_cross_entropy_with_logits(h1, h1.sigmoid(), reduction='none')
        note.value('after', h1.detach().sum().item())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
