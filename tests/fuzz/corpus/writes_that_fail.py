"""A write in place that raises, since the shapes do not fit or the index lies outside, and that the program catches. A region had been told of it: backward raised that a tensor had been modified."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(71)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(18, 45), nn.Tanh(), nn.Linear(45, 32), nn.Tanh(), nn.Linear(32, 6))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(4):
        x, y = torch.randn(44, 18), torch.randint(6, (44,))
        h = m0[:2](x)
        try:
            if step == 0:
                h.add_(torch.ones(3))
            elif step == 1:
                h.index_fill_(0, torch.tensor([70]), 0.0)
            elif step == 2:
                torch.add(h, 1, out=h)
            else:
                h[:1].expand(44, 45).mul_(2)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError) as error:
            note.value("raised", len(str(error)))
        loss = F.cross_entropy(m0[2:](h), y)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
