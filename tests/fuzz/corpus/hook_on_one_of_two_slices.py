"""A hook on one of the results of `tensor_split()`, of which the loss reads the other alone. PyTorch has a node for each, and does not call the hook. A split step called it with None, which the hook multiplies: an error of the program's own."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(16)
    torch.set_default_dtype(torch.float64)
    net = nn.LayerNorm(6)
    trained = note.trained([*net.parameters()])
    for step in note.steps(3):
        h0 = net(note.data(torch.randn(12, 4, 6)))
        h1, h2 = h0.tensor_split(2, 2) if step == 0 else h0.hsplit(2) if step == 1 else h0.chunk(2, 2)
        h1.register_hook(lambda gradient: note.value("hook", gradient is None))
        l0 = (1 - ((h2.flatten(1).var(0) + 1e-2).sqrt())).relu().mean() + h2.square().mean()
        for parameter, gradient in zip(trained, torch.autograd.grad(l0, trained), strict=True):
            parameter.grad = gradient
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
