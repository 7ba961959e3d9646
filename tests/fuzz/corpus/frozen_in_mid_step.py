"""A part of the model is frozen for one pass of a step, and trained again before backward, as Dreamer and adversarial losses do. Where memory ran out while it was frozen, what had been read before took it for a
constant: its gradient was silently None. Where memory ran out later, the step was refused, since the tape had let go of what it had read before."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def frozen(part, run):
    part.requires_grad_(False)
    result = run()
    part.requires_grad_(True)
    return result


def program(note):
    torch.manual_seed(99)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 3))
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for i in note.steps(6):
        rows = 40 + 4 * i
        x, y = torch.randn(rows, 8), torch.randint(0, 3, (rows,))
        optimizer.zero_grad(set_to_none=i % 2 == 0)
        part = (model[4], model[2:], model)[i % 3]
        if i % 2 == 0:
            first = F.cross_entropy(model(x), y)
            loss = first + 0.1 * frozen(part, lambda: model(x.flip(1)).square().mean())
        else:
            h = model[:2](x)
            first = frozen(part, lambda: model[2:](h).square().mean())
            loss = F.cross_entropy(model[2:](h), y) + 0.1 * first
        note.value("loss", loss.item())
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})
        del loss, first
