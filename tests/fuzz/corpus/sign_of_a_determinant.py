"""No gradient goes through the sign of a determinant: the parameters of a batch norm before it, which runs in stages, keep None and get no zeros."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(933119)
    torch.set_default_dtype(torch.float64)
    m0 = nn.BatchNorm1d(12)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=0.1)
    for step in note.steps(2):
        x0 = note.data(torch.randn(3, 12, 2)).requires_grad_()
        h0 = m0(x0)
        h1 = torch.expm1(torch.linalg.slogdet(h0 @ h0.mT + 3 * torch.eye(12))[0])
        (h1.logsumexp(0) + h1.mean()).backward()
        note.value('input', x0.grad is None)
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
