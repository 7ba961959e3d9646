"""A gradient is asked for a view of a buffer that was filled slice by slice (what a recurrent net gave, transposed). A linear layer reads such a view as a copy where it is written to in place; the gradient was asked of such a copy, too, which nothing hangs on."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(73)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(15, 43), nn.Tanh(), nn.Linear(43, 30), nn.Tanh(), nn.Linear(30, 4))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x, y = torch.randn(38, 15), torch.randint(4, (38,))
        h = m0[:2](x)
        o = torch.empty(3, 38, 43) if step != 1 else torch.zeros(38, 3, 43)
        for t in range(3):
            if step != 1:
                o[t] = h * (t + 1)
            else:
                o[:, t] = h * (t + 1)
        a = o.transpose(0, 1)
        (g,) = torch.autograd.grad(m0[2](a).tanh().sum(), a, retain_graph=True, allow_unused=step == 2)
        note.value("slope", g.sum().item())
        loss = F.cross_entropy(m0[2:](a.mean(1 if step != 1 else 0)), y)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
