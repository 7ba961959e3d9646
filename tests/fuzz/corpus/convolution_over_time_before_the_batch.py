"""conv_tbc() looks at its input by views that only memory in the order of its dimensions has: it runs whole."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(78)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 5))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x, y = torch.randn(6, 37, 24), torch.randint(5, (37,))
        given = torch.conv_tbc(x, torch.ones(2, 24, 24) * 0.1, torch.zeros(24), 1)
        h = m0[:4](given[:6])
        loss = F.cross_entropy(m0[4](h.mean(0)), y)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
