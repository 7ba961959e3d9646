"""Weights are changed through an array of NumPy's that was taken before the step, for one pass of it, and set back before backward: finite differences, weight noise, averaged weights. Nothing tells of it but the memory itself: the second pass
took the weights for those of the first, silently."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(105)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 3))
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.1)
    weights = (model[2].weight.detach().numpy(), model[0].weight.data.numpy())
    for i in note.steps(4):
        x, y = torch.randn(43, 10), torch.randint(0, 3, (43,))
        weight = weights[i % 2]
        kept = weight.copy()
        optimizer.zero_grad()
        first = F.cross_entropy(model(x), y)
        weight[:3] *= 0.5
        with torch.set_grad_enabled(i < 2):
            second = F.cross_entropy(model(x.flip(1)), y)
        weight[:] = kept
        note.value("second", second.item())
        loss = first + second
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})
        del loss, first, second
