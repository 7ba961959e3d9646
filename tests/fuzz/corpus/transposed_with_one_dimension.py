"""What t_ makes of one dimension, or at the second time, looks as it did before: the view was given its own tensor for a base."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(3000954)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(3) * 0.5)
    trained = note.trained([w0])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(3)).requires_grad_()
        h0 = x0.cumsum(-1)
        h1 = torch.cat([row[None] for row in h0])
        h2 = h1.data * 1.0
        h1.t_()
        h3, h4 = h0.max(0)
        h5 = torch.copysign(h1, w0)
        h6 = h5.gather(0, torch.zeros_like(h5, dtype=torch.long))
        h7 = h6 + (h6.tanh() - h6).detach()
        h8, h9, *_ = h5.unbind(0)
        l0 = F.mse_loss(h7, torch.randn(3)) + F.smooth_l1_loss(h8, torch.zeros_like(h8))
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.item())
        note.value('batch', x0.grad)
        o0.step()
        note.state(nn.ModuleList(), trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
