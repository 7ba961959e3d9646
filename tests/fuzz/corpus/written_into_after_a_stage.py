"""Zeros that hang on a stage that had ended were made again, and written into through a view: the base did not know that gradients pass through it, and a stage that ended on it left its writer without any."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    m0 = nn.RMSNorm(24)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(24, 24)).requires_grad_()
        h0 = m0(x0)
        h1 = torch.randn(24) - x0.new_zeros(23, 24).scatter_add_(0, torch.randint(23, (24,))[:, None].expand(24, 24), x0)
        h2 = torch.zeros_like(h0)
        h3 = h2[..., 1:]
        h3.copy_(h0[..., 1:] * 1.5)
        l0 = F.cross_entropy(F.normalize(h2, dim=1) @ F.normalize(h2, dim=1).T * 3, torch.arange(24))
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.detach())
        note.keep('x', x0.grad)
        o0.step()
        note.state(net, trained, {'h1': h1})
