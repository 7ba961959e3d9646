"""The last hidden state is repeated over the time steps that the batch is split by. The region made the repetition in parts, and hung on itself: backward ended in an error of the engine's."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(75)
    torch.set_default_dtype(torch.float64)
    m0 = nn.ModuleList([nn.Linear(10, 12), nn.Linear(24, 12), nn.Linear(12, 21)])
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x, y = torch.randn(9, 23, 10), torch.randint(21, (23,))
        outs = torch.tanh(m0[0](x))
        keys = outs.permute(1, 0, 2)
        query = outs[-1].unsqueeze(1)
        both = torch.cat((query.repeat(1, 9, 1) if step != 1 else query.expand(-1, 9, -1), keys), 2)
        loss = F.cross_entropy(m0[2](torch.tanh(m0[1](both)).mean(1)), y)
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
