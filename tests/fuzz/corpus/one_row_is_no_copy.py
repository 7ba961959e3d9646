"""What multi-head attention saves of its input is a copy at the full batch, and of one row a view of what is written to afterwards."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square, autocast


def program(note):
    torch.manual_seed(95575115143)
    torch.set_default_dtype(torch.float64)
    m0 = nn.MultiheadAttention(4, 2, batch_first=True)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    for step in note.steps(2):
        x0 = note.data(torch.randn(10, 4, 4))
        h0 = m0(x0, x0, x0, need_weights=True)[0]
        h1 = torch.i0(x0)
        h2 = x0.select(0, 0)
        h3 = torch.empty_like(h0).normal_() * h0.clamp(max=1).exp() + h0
        h2[..., :1].zero_()
        h4 = torch.cosh((h0.clamp(-2,2)))
        l0 = F.mse_loss(h0, torch.randn(10, 4, 4), reduction='none').mean()
        l1 = (h0 * (torch.rand(10, 4, 4) > 0.4)).sum() / 7
        net.zero_grad()
        for p in trained: p.grad = None
        (l0 + l1).backward()
        note.value('loss', l0.item()); note.value('loss', l1.detach())
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
