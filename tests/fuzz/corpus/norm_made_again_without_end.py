"""A norm over what is split, of a kind that autocast on a CUDA device calls once more. A conversion made it again, each time in a region of its own with rows to let go of, for ever."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from functions import autocast


def program(note):
    torch.manual_seed(95600200050)
    torch.set_default_dtype(torch.float32)
    w0 = nn.Parameter(torch.tensor(0.8))
    w1 = nn.Parameter(torch.randn(5, 3) * 0.5)
    m0 = nn.utils.weight_norm(nn.Linear(3, 3))
    w2 = nn.Parameter(torch.randn(3, 4) * 0.5)
    w3 = nn.Parameter(torch.randn(4) * 0.5)
    m1 = nn.Embedding(7, 4)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters(), w0, w1, w2, w3])
    o0 = torch.optim.SGD(trained, lr=0.05, weight_decay=0.01, nesterov=True, momentum=0.8)
    for step in note.steps(2):
        with autocast():
            x0 = note.data(torch.randn(1))
            h1 = (x0.detach() * 3).long().clamp(0, 6)
            h2 = F.embedding(h1 % 5, w1)
            h3 = torch.linalg.matrix_norm(h2)
            h4 = m0(h2)
            h6 = h4.transpose(1, 0)
            h7 = m1(h1 % 7)
            h8 = F.smooth_l1_loss(h4, h6, reduction='none')
            h9 = h6.transpose(-2, 0)
            l0 = h8.flatten(1).max(0).values.mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
