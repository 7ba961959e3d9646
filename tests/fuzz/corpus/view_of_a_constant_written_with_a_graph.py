"""A view of what has no gradient is written to with something that has one. In a split step that write may run for real, and koila's view was none to PyTorch: the gradient of what was written was lost without a word, or there was no graph for backward at all."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(13)
    torch.set_default_dtype(torch.float64)
    first, last = nn.Linear(6, 6), nn.Linear(6, 3)
    net = nn.ModuleList([first, last])
    trained = note.trained([*net.parameters()])
    for step in note.steps(4):
        x0 = note.data(torch.randn(8, 4, 6))
        h0 = first(x0)
        h1 = x0 * (x0 > 0)
        v1 = h1[:, 1:]
        if step < 2:
            v1.copy_(h0[:, 1:].mean(0))
        h2 = x0 * 0.5
        if step == 1:
            v2 = h2.transpose(0, 1)[2:]
            note.value("read", h2.sum().item())
            v2.add_(h0.mean((0, 1)))
        if step == 2:  # the base, and a view of it that is there
            v2 = h2.select(1, 0)
            h2.mul_(h0.mean())
            note.value("view", v2.requires_grad)
        l0 = F.cross_entropy(last(h1 + h2).flatten(0, 1), torch.randint(3, (32,))) + h0.square().mean()
        if step == 3:
            h3 = h0.mean(1, keepdim=True).expand(8, 4, 6)
            h1[1:] = h3[1:] * 2
            l0 = F.l1_loss(h1.select(0, 0), torch.randn(4, 6))
        for parameter in trained:
            parameter.grad = None
        l0.backward()
        note.value("loss", l0.item())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
