"""Writes in place in inference mode, whose tensors have no version: what ran out after them was made again without them. And one to the program's own data in that mode, whose copy from before was a tensor of that mode, which backward may not
write to."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    convolutions = nn.ModuleList([nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)])
    trained = note.trained([*convolutions.parameters()])
    for _ in note.steps(2):
        x = note.data(torch.randn(8, 3, 9, 9))
        with torch.inference_mode():
            h = convolutions[1](torch.tanh(convolutions[0](x)))
            h[3] = 0
            h[:, 1].relu_()
            h += 0.5
            note.value("evaluated", convolutions[2](h).mean((2, 3)).sum().item())
        h = convolutions[1](torch.tanh(convolutions[0](x.clone())))
        with torch.inference_mode():
            x[5] = 0
        h = h + convolutions[1](torch.tanh(convolutions[0](x)))
        convolutions[2](h).mean((2, 3)).pow(2).sum().backward()
        note.state(convolutions, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
