"""A batch of one row, which is split along its features, as many as the weight that weight_norm() makes has rows. The weight is made again, while the layer that read it stays whole, and has saved the weight transposed: that shares the
weight's memory, which the conversion had taken, and backward raised "this tensor's value is deferred"."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    first = nn.Linear(3, 8)
    second = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    trained = note.trained([*first.parameters(), *second.parameters()])
    for _ in note.steps(3):
        x = note.data(torch.randn(1, 3))
        h = second(first(x))
        labels = (h.detach() * 3).long().clamp(0, 6)
        h.pow(2).mean().backward()
        note.value("labels", labels)
        note.state(nn.ModuleList([first, second]), trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
