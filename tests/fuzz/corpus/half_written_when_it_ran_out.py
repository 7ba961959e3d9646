"""An operator that writes in place ran out after it had written a part. The check at run time compared with that."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(6, 8)
    m1 = nn.Linear(8, 4)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.AdamW(trained, lr=0.01, eps=1e-3)
    for step in note.steps(2):
        x0 = note.data(torch.randn(12)).requires_grad_()
        h0 = (x0.detach() * 3).long().clamp(0, 6)
        h1 = torch.nn.functional.one_hot(h0 % 6, 6).double()
        h2 = m0(h1)
        h3 = h2.clone()
        h3.cumsum_(0)
        h4 = h3 * (h3 > h3).double()
        h6 = h3.new_zeros(4, 8).scatter_reduce_(0, torch.randint(4, (12,))[:, None].expand(12, 8), h3, 'mean', include_self=False)
        h7 = h6[torch.randint(4, (12,))] + h3
        h8 = h7.data * 1.0
        h13 = m1(h8 + (h8.tanh() - h8).detach())
        l0 = h13.square().mean() / h13.detach().square().mean().add(0.1)
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})
