"""A sum over split features comes out of its region for a slice of a view of it, which is written to in place. PyTorch gave the graph of the write to the view alone, which was no view to it of the
sum: the gradient passed by the write. Refused now where another tensor of that memory is alive."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    weight = nn.Parameter(torch.randn(4, 6))
    net = nn.ParameterList([weight])
    trained = note.trained([weight])
    optimizer = torch.optim.SGD(trained, lr=0.01)
    x, y, u, v = torch.randn(12, 6), torch.randn(12, 4, 4), torch.randn(4), torch.randn(6)
    for step in note.steps(2):
        optimizer.zero_grad()
        h = F.linear(note.data(x.clone()), weight / torch.vdot(u, torch.mv(weight, v)))
        h.view(-1)[:2].mul_(2)
        product = h.unsqueeze(-1) * h.unsqueeze(-2)
        product[:0] = 5
        loss = F.l1_loss(product, y)
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()
        note.value("loss", loss)
        optimizer.step()
        note.state(net, trained, {})
