"""A label, a token and a column that lie outside, each in a `try` of the program's own. The errors came from backward, outside of it, or never."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(70)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(17, 44), nn.Tanh(), nn.Linear(44, 31), nn.Tanh(), nn.Linear(31, 5))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(4):
        x, y = torch.randn(43, 17), torch.randint(5, (43,))
        bad = y.clone()
        bad[42] = 7
        try:
            if step == 0:
                loss = F.cross_entropy(m0(x), bad)
            elif step == 1:
                loss = m0(x).gather(1, bad[:, None]).mean()
            elif step == 2:
                loss = F.cross_entropy(m0(F.embedding(bad, x[:7])), y)
            else:
                loss = m0(x)[torch.arange(43), bad].square().mean()
            note.value("raised", 0)
        except torch.OutOfMemoryError:
            raise
        except IndexError:
            note.value("raised", 1)
            loss = F.cross_entropy(m0(x), y)
        except RuntimeError:
            note.value("raised", 2)
            loss = F.cross_entropy(m0(x), y)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
