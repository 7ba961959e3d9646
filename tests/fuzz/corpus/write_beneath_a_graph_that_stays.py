"""A part of the step keeps the graph that it has (a parameter that it reads was frozen for the moment), and hangs on what was written to in place below. A conversion made that write once more, and PyTorch found that a saved tensor had been modified."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(74)
    torch.set_default_dtype(torch.float64)
    m0 = nn.ModuleList([nn.Linear(12, 12), nn.Linear(12, 12)])
    w0 = nn.Parameter(torch.randn(12) * 0.1)
    scale = torch.linspace(0.5, 1.5, 11)[:, None]
    trained = note.trained([*m0.parameters(), w0])
    o0 = torch.optim.SGD(trained, lr=0.05)

    def wide(a):
        return torch.tanh(a[..., None, :] * scale).mean(-2)

    for step in note.steps(3):
        x = torch.randn(118, 12)
        k = torch.arange(0, 118, 2)
        o = torch.zeros(118, 12)
        if step < 2:
            o[k] = wide(m0[0](x[k]))
        else:
            o = wide(m0[0](x)) * 1.0
            o[:, ::2].mul_(0.5)
        h = torch.tanh(m0[1](o)) * 2.0
        first = wide(m0[1](h[:24]))
        w0.requires_grad_(False)
        second = m0[1](h + w0)
        w0.requires_grad_(True)
        loss = first.square().mean() + second.square().mean() + (w0.square().mean() if step == 1 else 0)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
