"""A norm over what is split, of a kind that autocast on a CUDA device calls once more. A conversion made it again, each time in a region of its own with rows to let go of, for ever."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from functions import autocast


def program(note):
    torch.manual_seed(95600200050)
    torch.set_default_dtype(torch.float32)
    w0 = nn.Parameter(torch.randn(5, 3) * 0.5)
    m0 = nn.utils.weight_norm(nn.Linear(3, 3))
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters(), w0])
    o0 = torch.optim.SGD(trained, lr=0.05, momentum=0.8)
    for step in note.steps(2):
        with autocast():
            x0 = note.data(torch.randn(1))
            h0 = (x0.detach() * 3).long().clamp(0, 6)
            h1 = F.embedding(h0 % 5, w0)
            h2 = torch.linalg.matrix_norm(h1)
            h3 = m0(h1)
            h4 = h3.transpose(1, 0)
            h5 = F.smooth_l1_loss(h3, h4, reduction='none')
            h6 = h4.transpose(-2, 0)
            l0 = h5.flatten(1).max(0).values.mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
