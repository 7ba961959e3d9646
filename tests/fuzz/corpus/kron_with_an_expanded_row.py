"""An expanded dimension has no stride to go by: the deferred view of it was taken to lie the other way round, what was computed with it as well, and a view raised."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(6, 6)
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x0 = note.data(torch.randn(8, 6))
        h1 = m0(x0)[torch.tensor([0, 0, 0, 1, 1, 2])]
        h2, h3 = torch.broadcast_tensors(h1, h1.select(0, 0).unsqueeze(0))
        h4 = F.normalize(h3, dim=-2)
        h5 = torch.kron(h4, h3)
        h6 = (h1[:, None, :].expand(6, 3, 6) * torch.arange(1, 7)[:, None, None]).view(6, 18)
        note.value('strides', [list(h6.stride()), list(h5.stride())])
        l0 = h5.square().mean() + (h6 * torch.rand_like(h6)).sum()
        o0.zero_grad()
        l0.backward()
        note.value('loss', l0.item())
        o0.step()
        note.state(m0, trained, {})
