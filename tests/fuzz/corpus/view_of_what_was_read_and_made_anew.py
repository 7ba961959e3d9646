"""A concatenation whose memory was looked at ran again in a conversion, and a view of the new one was taken to have its data: koila's own error where it was read."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(780770)
    torch.set_default_dtype(torch.float64)
    net = nn.Linear(8, 8)
    trained = note.trained([*net.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.01)
    for step in note.steps(2):
        x = note.data(torch.randn(10, 8))
        h = torch.tanh(net(x))
        both = torch.hstack([h, h * 2])
        note.value("print", str(both.detach().flatten()[:4]))
        parts = both.unflatten(1, (2, 8))
        lengths = torch.softmax(h, 1).square().sum(1)
        loss = parts.max(0).values.mean() + both.square().mean() + lengths.mean()
        loss.backward()
        optimizer.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
