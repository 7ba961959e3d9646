"""An autograd.Function that writes to a view of a recurrent layer's output hangs within the node for writes to views, and was lost where memory ran out before anything read the view."""

import torch
import torch.nn as nn
from functions import Marked


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    m0 = nn.LSTM(6, 4, batch_first=True)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(12, 4, 6))
        h0 = Marked.apply(m0(x0)[0])
        h1 = (x0 * 3).exp()
        h2 = torch.cat([h1, x0 * 2, h1 * 0.1], 2).sin()
        l0 = torch.deg2rad(h0).sum() * 0.1 + (h2.mean() * h0.mean())
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.detach())
        o0.step()
        note.state(net, trained, {})
