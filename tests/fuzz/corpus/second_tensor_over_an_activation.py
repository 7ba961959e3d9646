"""A tensor over an activation's memory that is no view of it, by DLPack, and that an operator writes to: the activation's version says nothing of it. It is let go of before backward."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(61)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(15, 44), nn.Tanh(), nn.Linear(44, 36), nn.Tanh(), nn.Linear(36, 7))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)

    def loss_of(x, y):
        h = m0[:2](x)
        d = torch.from_dlpack(h.detach())
        d[:3] = 0.3
        return F.cross_entropy(m0[2:](h), y)

    for _ in note.steps(3):
        loss = loss_of(torch.randn(37, 15), torch.randint(7, (37,)))
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
