"""A batch norm in a checkpoint, whose running statistics are as large as what the tape knows the making of: it was cut in the middle of the checkpoint, and forgot that this has effects. They moved once only."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def program(note):
    torch.manual_seed(11)
    torch.set_default_dtype(torch.float64)
    first, rest = nn.Linear(6, 520), nn.Sequential(nn.BatchNorm1d(520), nn.Tanh(), nn.Linear(520, 3))
    model = nn.ModuleList([first, rest])
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.05)
    for _ in note.steps(2):
        x, y = torch.randn(24, 6), torch.randint(3, (24,))
        loss = F.cross_entropy(checkpoint(rest, first(x), use_reentrant=False), y)
        note.value("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
