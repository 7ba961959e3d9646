"""A view that the program holds, of what was made again at the full batch, was no view any more: what was written through it had no gradient."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    m0 = nn.BatchNorm1d(16)
    w0 = nn.Parameter(torch.randn(6, 6) * 0.5)
    trained = note.trained([*m0.parameters(), w0])
    for step in note.steps(3):
        x0 = note.data(torch.randn(3, 16, 6))
        h0 = m0(x0 @ w0) * 1.5
        h1 = torch.zeros_like(h0)
        h2 = h1[..., 1:]
        h2.add_(h0[..., 1:])
        h3 = (h0 @ w0).unflatten(-1, (2, 3)).permute(1, 0, 2, 3)
        h4 = F.scaled_dot_product_attention(h3, h3, h3, is_causal=True).transpose(0, 1) * 1.0
        h4[1:].add_(0.2)
        l0 = h1.square().mean() + h4.square().mean()
        m0.zero_grad()
        for p in trained: p.grad = None
        l0.backward()
        note.value('loss', l0)
        note.value('view', h2)
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
