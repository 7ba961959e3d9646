"""The default type is another one within the step, for operators of whole numbers: what they become is said by the type that there was when they were called."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    layer = nn.Linear(6, 10)
    trained = note.trained([*layer.parameters()])
    for _ in note.steps(2):
        x, y = note.data(torch.randn(24, 6)), torch.randint(9, (24, 10))
        torch.set_default_dtype(torch.float32)
        share = (y / 7).to(torch.float64)
        torch.set_default_dtype(torch.float64)
        h = layer(x) * share
        loss = (h.tanh() * (y / 3)).pow(2).mean()
        torch.set_default_dtype(torch.float32)
        loss.backward()
        torch.set_default_dtype(torch.float64)
        note.value("loss", loss.item())
        note.state(layer, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
