"""Data is written to through reshape(-1), a view of it, in a step that is split along another dimension than the first: of a part, whose rows lie apart, reshape() and contiguous() give a copy, and the write was lost. The data themselves, and a batch
norm's running mean, were other ones, silently."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(107)
    torch.set_default_dtype(torch.float64)
    model = nn.ModuleList([nn.BatchNorm1d(12)])
    scale = nn.Parameter(torch.randn(12))
    trained = note.trained([*model.parameters(), scale])
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    for i in note.steps(4):
        x = note.data(torch.randn(12, 12))
        flat = (x.reshape(-1), x.contiguous(), x.flatten(), x.reshape(6, 24))[i]
        flat.sub_(0.2)
        h = model[0](x)
        h = (h - h.mean(0, keepdim=True)) / (h.var(0, keepdim=True, unbiased=False) + 0.1).sqrt() + x * scale
        loss = (h.exp().mean(0) + 0.01).norm() + (1 - h.mean(0)).clamp(min=0).mean()
        note.value("loss", loss.item())
        note.value("data", x.sum().item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})
        del loss, h, flat
