"""Data that an operator has read is written to without its own version telling: through view(dtype) and unsafe_split() in inference mode and under no_grad. What had read it was made again from the new values."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    first, second = nn.Linear(6, 10), nn.Linear(10, 10)
    trained = note.trained([*first.parameters(), *second.parameters()])
    writes = {"view": lambda t: t.view(torch.int64)[7].bitwise_xor_(torch.tensor(-(2**63))), "split": lambda t: t.unsafe_split(1)[7].neg_(), "chunk": lambda t: t.unsafe_chunk(24)[7].neg_()}
    for _ in note.steps(2):
        x = note.data(torch.randn(24, 6))
        for mode in (torch.inference_mode, torch.no_grad):
            for name, write in writes.items():
                data = torch.randn(24, 10)
                with mode():
                    a = torch.tanh(first(x)) * data.sin()
                    write(data)
                    z = torch.relu(second(a)).sigmoid() + data.cos() * a
                    note.value(f"{mode.__name__} {name}", (z.sum().item(), a.sum().item()))
        (first(x).tanh() * data.sin()).pow(2).mean().backward()
        note.state(nn.ModuleList([first, second]), trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
