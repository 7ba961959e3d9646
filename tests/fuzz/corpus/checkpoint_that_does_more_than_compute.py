"""What a checkpoint's function does besides its result it does once more in backward: it updates a buffer, and draws anew without preserve_rng_state. In micro-batches it was not run again: other statistics, other gradients, another generator."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def program(note):
    torch.manual_seed(104)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(9, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
    model.register_buffer("mean", torch.zeros(48))
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.1)

    def moving(h):
        with torch.no_grad():
            model.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return model[2:4](h - model.mean)

    def noisy(h):
        return model[2:4](h + 0.1 * torch.randn_like(h))

    for i in note.steps(4):
        x, y = torch.randn(41, 9), torch.randint(0, 3, (41,))
        optimizer.zero_grad()
        h = checkpoint((moving, noisy)[i % 2], model[:2](x), use_reentrant=False, preserve_rng_state=False)
        loss = F.cross_entropy(model[4:](h), y)
        loss.backward()
        note.value("first", loss.item())
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        note.value("second", loss.item())
        note.value("drawn", torch.rand(1).item())
        optimizer.step()
        note.state(model, trained, {"mean": model.mean})
        del loss, h
