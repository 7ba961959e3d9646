"""scaled_dot_product_attention() of transposed operands lies in memory as the CPU's kernel has it, which is not as the meta device's kernel has it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(2003787)
    torch.set_default_dtype(torch.float64)
    w0 = nn.Parameter(torch.randn(2, 6) * 0.5)
    w1 = nn.Parameter(torch.randn(2, 3) * 0.5)
    net = nn.ModuleList([])
    trained = note.trained([*net.parameters(), w0, w1])
    o0 = torch.optim.SGD(trained, lr=0.05, foreach=True)
    for step in note.steps(2):
        x1 = note.data(torch.randn(5, 2, 2))
        q0, k0, v0 = (x1 @ w0 * 0.4).unflatten(-1, (3, 2, 1)).permute(2, 0, 3, 1, 4)
        h0 = F.scaled_dot_product_attention(q0, k0, v0, is_causal=True).transpose(1, 2).flatten(2)
        h3 = h0.view(5, -1)
        h4 = x1 @ w1
        l0 = F.mse_loss(h4, torch.randn(5, 2, 3)) + h3.square().mean()
        o0.zero_grad(set_to_none=False)
        (l0).backward()
        o0.step()
        note.state(net, trained, {})
