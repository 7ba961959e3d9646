"""Zeros that are read by an operator, and then written to with something that has a gradient, in a step without a backward pass: the write gave the tensor a graph that led to what held the tensor, and the two lived for ever."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    first, second = nn.Linear(6, 8), nn.Linear(8, 8)
    trained = note.trained([*first.parameters(), *second.parameters()])
    for _ in note.steps(2):
        x = note.data(torch.randn(6, 4, 6)).requires_grad_()
        h = first(x)
        whole = h.trunc()
        h.softmax(2)
        second(whole)
        half, _ = h.chunk(2, 0)
        shifted = torch.zeros_like(half)
        rows = shifted[..., 1:]
        rows[:] = half[..., :-1].tanh()
        note.value("shifted", shifted.detach().clone())
        note.state(nn.ModuleList([first, second]), trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
