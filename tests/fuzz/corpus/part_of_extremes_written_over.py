"""The larger of two extremes is written over in part with what was made of it, in a step without a backward pass. Where the write runs whole it gives a tensor that a region reads, and that had a gradient, another graph, which leads to the region."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1435298)
    torch.set_default_dtype(torch.float64)
    weights = [nn.Parameter(torch.randn(*size) * 0.5) for size in ((5, 6), (5,), (6, 5))]
    norms = nn.ModuleList([nn.RMSNorm(5), nn.RMSNorm(5)])
    trained = note.trained([*norms.parameters(), *weights])
    for _ in note.steps(2):
        x = note.data(torch.randn(5, 6))
        mixed = x.detach().clone()
        mixed[:3] = x[:3] * 0.5
        mixed[3:] = x[3:].flip(0)
        F.linear(x, weights[0], weights[1])
        h = torch.einsum("...i,ij->...j", x, weights[2])
        leaf = h.detach().requires_grad_()
        _, largest = h.aminmax(dim=1)
        norms[1](norms[0](leaf))
        largest[1:] = largest[1:] * 2
        note.state(norms, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
