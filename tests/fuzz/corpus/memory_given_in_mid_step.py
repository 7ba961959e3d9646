"""Parameters are given other memory (`.data = ...`) for one pass of a step: averaged weights for a teacher, adapters that are merged, a model that is cast. No version tells, and the passes before and after were
made again with the wrong weights, silently; one of another dtype raised a RuntimeError."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def taught(model, x, others):
    """What the model says with the other weights."""
    kept = [p.data for p in model.parameters()]
    for p, other in zip(model.parameters(), others):
        p.data = other
    with torch.no_grad():
        result = model(x).softmax(1)
    for p, mine in zip(model.parameters(), kept):
        p.data = mine
    return result


def exchanged(model, x, teacher):
    def exchange():
        for p, other in zip(model.parameters(), teacher):
            p.data, other.data = other.data, p.data

    exchange()
    with torch.no_grad():
        result = model(x).softmax(1)
    exchange()
    return result


def program(note):
    torch.manual_seed(100)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 3))
    trained = note.trained([*model.parameters()])
    teacher = [p.detach().clone() * 0.9 for p in model.parameters()]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for i in note.steps(6):
        rows = 40 + 4 * i
        x, y = torch.randn(rows, 8), torch.randint(0, 3, (rows,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) if i % 2 == 0 else 0.0
        if i % 3 == 0:
            target = taught(model, x, [p.data * 0.9 for p in model.parameters()])
        elif i % 3 == 1:
            target = exchanged(model, x, teacher)
        else:
            target = taught(model, x, [p.data + 0.1 * p.data.mean() for p in model.parameters()])
        loss = loss + F.cross_entropy(model(x.flip(1)), target)
        note.value("loss", loss.item())
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})
        del loss, target
