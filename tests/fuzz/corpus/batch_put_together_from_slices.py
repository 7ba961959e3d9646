"""A batch that is put together in a fresh tensor, slice by slice: columns in one step, rows in the next, and a part that is made again by the numbers of the other in the third."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(64)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(18, 46), nn.Tanh(), nn.Linear(46, 38), nn.Tanh(), nn.Linear(38, 6))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    batches = [(torch.randn(42, 18), torch.randint(6, (42,))) for _ in range(3)]
    for step in note.steps(3):
        x, y = batches[step]
        if step == 0:
            rows = torch.zeros(42, 18)
            rows[:, :8] = x[:, 8:16]
            rows[:, 8:16] = x[:, :8] * 2
            rows[:, 16:] = y[:, None]
        elif step == 1:
            rows = torch.empty(42, 18)
            for i in range(0, 42, 14):
                rows[i : i + 14] = x[i : i + 14] * (i + 1) / 14
        else:
            rows = x.clone()
            mean = rows.mean(0)
            rows[5:20] -= mean
            rows[30:].mul_(0.5)
        loss = F.cross_entropy(m0(rows), y)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
