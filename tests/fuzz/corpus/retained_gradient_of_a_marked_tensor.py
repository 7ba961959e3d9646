"""A tensor with retain_grad() goes through an autograd.Function that marks it as written to. A region's node has many outputs, and PyTorch looked for what was retained under the first: an internal assertion."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from functions import Marked


def program(note):
    torch.manual_seed(76)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(16, 47), nn.Tanh(), nn.Linear(47, 34), nn.Tanh(), nn.Linear(34, 3))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x, y = torch.randn(45, 16), torch.randint(3, (45,))
        h = m0[:2](x) * 1.0
        h.retain_grad()
        if step > 0:
            h.register_hook(lambda g: g * 1.5)
        h = Marked.apply(h)
        loss = F.cross_entropy(m0[2:](h), y)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        note.value("retained", h.grad.sum().item() if h.retains_grad and h.grad is not None else 0)
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
