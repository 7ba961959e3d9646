"""Statistics over a batch of no rows: whoever looked on at its micro-batches saw no entry."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1202814)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(3, 3) * 0.5)
    trained = note.trained([w0])
    o0 = torch.optim.RMSprop(trained, lr=0.01, eps=1e-2)
    for step in note.steps(3):
        b0 = 13 if step < 1 else 0
        x0 = note.data(torch.randn(4, b0, 3))
        h0 = F.normalize(x0 @ w0)
        l0 = F.smooth_l1_loss(h0, torch.zeros_like(h0))
        l1 = (1 - (h0.flatten(1).var(0) + 1e-2).sqrt()).relu().mean() + h0.square().mean()
        o0.zero_grad()
        torch.autograd.backward([l0, l1])
        note.value('loss', l0.detach()); note.value('loss', l1.item())
        o0.step()
        note.state(nn.ModuleList(), trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
