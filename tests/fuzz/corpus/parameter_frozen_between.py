"""A parameter is frozen between the forward pass and the backward pass, which leaves it out; and once for the first of two passes along one graph."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(67)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(21, 43), nn.Tanh(), nn.Linear(43, 37), nn.Tanh(), nn.Linear(37, 9))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        loss = F.cross_entropy(m0(torch.randn(47, 21)), torch.randint(9, (47,)))
        note.value("loss", loss.item())
        o0.zero_grad()
        m0[2].weight.requires_grad_(False)
        loss.backward(retain_graph=step == 2)
        m0[2].weight.requires_grad_(True)
        if step == 2:
            loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
