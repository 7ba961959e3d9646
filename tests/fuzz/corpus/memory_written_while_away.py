"""What a parameter or a buffer had for memory is written to while it has other memory, and it gets that back: no version of its own tells. The pass before was made again with what is there by then."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(102)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 3))
    model.register_buffer("scale", torch.randn(8))
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for i in note.steps(4):
        x, y = torch.randn(44, 8), torch.randint(0, 3, (44,))
        loss = F.cross_entropy(model(x * model.scale), y)
        moved = trained if i % 2 == 0 else [model.scale]
        kept = [t.data for t in moved]
        for t in moved:
            t.data = t.data * 0.9
        with torch.no_grad():
            target = model(x * model.scale).softmax(1)
        for t, mine in zip(moved, kept):
            mine.mul_(0.95)
            t.data = mine
        loss = loss + F.cross_entropy(model(x.flip(1) * model.scale), target)
        note.value("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})
        del loss, target
