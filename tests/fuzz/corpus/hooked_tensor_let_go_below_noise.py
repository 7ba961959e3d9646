"""A tensor with a hook is let go of (its name stands for another one), and what hangs on it is read twice, with noise above that is gone by the time that the step is split. The hook hangs on the node; the graph that stays went by the old node, whose hook had been taken away, and it was never called."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(15)
    torch.set_default_dtype(torch.float64)
    first, last = nn.Linear(8, 12), nn.Linear(12, 5)
    net = nn.ModuleList([first, last])
    trained = note.trained([*net.parameters()])
    for step in note.steps(3):
        h0 = torch.tanh(first(note.data(torch.randn(24, 8))))
        h0.register_hook(lambda gradient: note.value("hook", gradient.sum().item()) or gradient * 3)
        h0 = h0 * 1.0
        h0 = h0 * 2 + h0.sin() if step == 1 else h0 / (h0.norm(dim=1, keepdim=True) + 0.5)
        h0 = h0 + 0.1 * torch.randn_like(h0)
        l0 = F.cross_entropy(last(h0), torch.randint(5, (24,)))
        for parameter in trained:
            parameter.grad = None
        l0.backward()
        note.value("loss", l0.item())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
