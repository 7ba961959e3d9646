"""The bias of attention's keys: its gradient is zero but for rounding, and sums over other micro-batches round otherwise. The check of another size took that for a fault where the part of the step
that is split ends before the softmax."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(84)
    torch.set_default_dtype(torch.float64)
    q, k, p = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
    model = nn.ModuleList([q, k, p])
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.05)
    for _ in note.steps(2):
        x, y = torch.randn(14, 17, 6), torch.randn(14, 4)
        queries, keys = q(x), k(x)
        top = queries.detach().norm(dim=-1).topk(5)[1]
        queries = queries[torch.arange(14)[:, None], top, :]
        loss = F.mse_loss(p((torch.softmax(queries @ keys.transpose(-2, -1), -1) @ x).mean(1)), y)
        note.value("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
