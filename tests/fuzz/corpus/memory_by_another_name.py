"""h.data is another tensor on the memory of h, which a rescue took away."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 5))
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x0 = note.data(torch.randn(32, 6))
        h0 = m0(x0)
        h1 = h0.data
        h2 = h1 * 1.0
        h3 = h1.exp()
        h4 = h0.detach().data.tanh()
        l0 = h0.square().mean() * 0.5 + h0.tanh().sum()
        note.value('loss', l0.detach())
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.value('after', (h2.sum() + h3.sum() + h4.sum()).item())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
