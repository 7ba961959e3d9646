"""A conversion that runs an in-place operator again ended its own region, and went on adding to it: a crash some steps later."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square


def program(note):
    torch.manual_seed(21825)
    torch.set_default_dtype(torch.float64)
    m0 = nn.ConvTranspose2d(3, 3, 2, stride=2)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.Adam(trained, lr=0.01, eps=1e-3)
    for step in note.steps(3):
        b0 = 13 if step < 1 else 1
        x1 = note.data(torch.randn(b0, 3, 4, 4))
        h0 = torch.as_tensor(x1.detach().numpy().copy())
        h1 = h0 * (torch.rand(b0, 3, 4, 4) > 0.3)
        h3 = h1.clone()
        h3.scatter_(-1, torch.zeros(1, 1, 1, 1, dtype=torch.long), 0.6)
        h4 = h0.view(b0, -1)
        h5 = m0(h3)
        h5.diagonal(dim1=0, dim2=-1).add_(1)
        h7 = torch.cat((h0, h3, h0), dim=1)
        h8 = h4 * (h4 > h4).double()
        h9 = F.mse_loss(h1, h3, reduction='none')
        h10 = torch.sinc(h5)
        h11 = Square.apply(h8)
        l0 = h10.flatten().logsumexp(0)
        o0.zero_grad(set_to_none=False)
        (l0).backward(retain_graph=True)
        (l0 * 0.5).backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
