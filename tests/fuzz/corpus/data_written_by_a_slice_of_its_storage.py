"""Data that an operator has read is written to through a slice of its storage, of which no operator and no version tells. What had read it was made again from the new values."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    first, second = nn.Linear(6, 10), nn.Linear(10, 10)
    trained = note.trained([*first.parameters(), *second.parameters()])
    for _ in note.steps(2):
        x = note.data(torch.randn(24, 6))
        for mode in (torch.inference_mode, torch.no_grad):
            data = torch.randn(24, 10)
            with mode():
                a = torch.tanh(first(x)) * data.sin()
                data.untyped_storage()[7 * 80:8 * 80].fill_(0)
                z = torch.relu(second(a)).sigmoid() + data.cos() * a
                note.value(mode.__name__, (z.sum().item(), a.sum().item()))
        (first(x).tanh() * data.sin()).pow(2).mean().backward()
        note.state(nn.ModuleList([first, second]), trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
