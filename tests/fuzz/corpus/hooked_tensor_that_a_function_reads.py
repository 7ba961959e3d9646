"""A tensor with a hook is read by a Function, and by an operator that backward does not come by. Where memory ran out in backward the tensor was made again for that operator, and the hook went with it: the Function's gradient came by without it,
silently."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from functions import Scale


def program(note):
    torch.manual_seed(1396029)
    torch.set_default_dtype(torch.float64)
    weight = nn.Parameter(torch.randn(3, 4) * 0.5)
    others = [nn.Parameter(torch.randn(n) * 0.5) for n in (3, 3, 3, 12, 4, 4)]
    net = nn.ModuleList([])
    trained = note.trained([weight, *others])
    for step in note.steps(2):
        x = note.data(torch.randn(2, 4))
        h = F.linear(x, weight)
        _, read = torch.meshgrid(h.flatten()[:4], h.flatten()[-3:], indexing="ij")
        read.register_hook(lambda gradient: gradient * 0.5)
        scaled = Scale.apply(read)
        aside = F.one_hot(torch.randint(4, (4,)), 4).double().T @ read
        note.retain("retained", aside)
        aside.register_hook(lambda gradient: gradient * 1.5)
        aside = aside[torch.randint(4, (4,))] + read
        sums = scaled.new_zeros(4, 3).index_add_(0, torch.randint(4, (4,)), scaled.detach())
        loss = F.l1_loss(sums[torch.randint(4, (4,))] + scaled, torch.randn(4, 3))
        loss.backward()
        note.state(net, trained, {})
