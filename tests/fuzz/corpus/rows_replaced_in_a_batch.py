"""Rows of a memory are read, some of them are replaced, and all are read; labels are permuted before some of them are written to. What was read before is not what is read after."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(65)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(13, 54), nn.Tanh(), nn.Linear(54, 33), nn.Tanh(), nn.Linear(33, 4))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    memory = torch.randn(46, 13)
    batches = [(torch.randn(46, 13), torch.randint(4, (46,))) for _ in range(3)]
    for step in note.steps(3):
        x, y = batches[step]
        if step < 2:
            h = m0[:2](memory[torch.randint(0, 46, (46,))])
            memory[3:9] = x[3:9] * 0.1
            loss = F.cross_entropy(m0[2:](h), y) + m0(memory).square().mean()
        else:
            permuted = y[torch.randperm(46)]
            y[:10] = 0
            rows = x.clone()
            turned = rows.flip(0)
            rows[:23] = rows[:23] * 0.7 + turned[:23] * 0.3
            loss = F.cross_entropy(m0(rows), y) * 0.7 + F.cross_entropy(m0(rows), permuted) * 0.3
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
