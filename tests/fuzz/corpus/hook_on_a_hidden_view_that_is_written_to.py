"""What einsum gives is a view of memory that no tensor stands for. Written to, it gets another node, and PyTorch calls its hook no more."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(3, 5) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([w0])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        h0 = torch.einsum('...i,ij->...j', note.data(torch.randn(33, 3)), w0)
        note.retain('retained', h0)
        h0.register_hook(lambda gradient: gradient * 1.5)
        h0.neg_()
        l0 = h0.exp().mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})
