"""A tensor with a hook is a view (of what a linear layer makes of three dimensions), and `detach()` of it is written to. PyTorch gives such a view another node when it is asked for one, and the hook is called no more. A split step called it: half the gradient, silently."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(14)
    torch.set_default_dtype(torch.float64)
    first, last = nn.Linear(3, 5), nn.Linear(5, 4)
    net = nn.ModuleList([first, last])
    trained = note.trained([*net.parameters()])
    for step in note.steps(4):
        x0 = note.data(torch.randn(30, 4, 3) if step < 3 else torch.randn(30, 3))
        h0 = first(x0)
        h0.register_hook(lambda gradient: gradient * 0.5)
        if step in (1, 3):
            h0.detach().add_(0.1)
        if step == 2:
            h0.data.add_(0.1)
        h1 = torch.tanh(h0 * 1.5) + h0
        l0 = (1 - last(h1)).clamp(min=0).mean()
        for parameter in trained:
            parameter.grad = None
        l0.backward()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
