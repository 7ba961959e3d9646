"""A window is shifted in place, `s[:, :-1] = s[:, 1:]`. Of one row alone the two parts are dense, and PyTorch finds that they overlap: an error that the full batch has not."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(72)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(20, 46), nn.Tanh(), nn.Linear(46, 33), nn.Tanh(), nn.Linear(33, 7))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x, y = torch.randn(41, 20), torch.randint(7, (41,))
        s = x.view(41, 5, 4).clone()
        s[:, :-1] = s[:, 1:]
        s[:, -1] = 0.1
        h = m0[:2](s.view(41, 20)) * 1.0
        if step > 0:
            h[:, :-8] = h[:, 8:].detach()
        if step > 1:
            h[:, :-8] += h[:, 8:].detach()
        loss = F.cross_entropy(m0[2:](h), y)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
