"""bmm was believed to have given what unsqueeze_ has made of it, and its parts had another shape."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(507269)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(12, 2) * 0.5)
    w1 = nn.Parameter(torch.randn(2) * 0.5)
    w2 = nn.Parameter(torch.randn(2) * 0.5)
    w3 = nn.Parameter(torch.randn(2, 12) * 0.5)
    w4 = nn.Parameter(torch.randn(12) * 0.5)
    w5 = nn.Parameter(torch.randn(12) * 0.5)
    w6 = nn.Parameter(torch.randn(12) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([*net.parameters(), w0, w1, w2, w3, w4, w5, w6])
    o0 = torch.optim.SGD(trained, lr=0.05, weight_decay=0.01, nesterov=True, momentum=0.8)
    for step in note.steps(2):
        x0 = note.data(torch.randn(12, 2, 12))
        h0 = torch.bmm(x0, w0.expand(12, -1, -1))
        h0.unsqueeze_(0)
        h1 = torch.tensordot(h0, w3, dims=1)
        l1 = -(h0.softmax(-1) * h0.log_softmax(-1)).sum(-1).mean()
        note.value('loss', l1)
        (l1).backward()
        note.value('loss', l1)
        if step % 2 == 1:
            o0.step()
            o0.zero_grad()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
