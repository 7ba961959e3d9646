"""Parts of the batch along its rows, written to in place, put together in another order, and sorted: slice(), narrow(), chunk(), split() and cat() by the row."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(15)
    torch.set_default_dtype(torch.float64)
    net, head = nn.Sequential(nn.Linear(9, 37), nn.Tanh(), nn.Linear(37, 14)), nn.Linear(14, 5)
    trained = note.trained([*net.parameters(), *head.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.1)
    for step in note.steps(3):
        x0 = note.data(torch.randn(47, 9))
        y0 = torch.randint(5, (47,))
        o0.zero_grad()
        h0 = net(x0) * 1
        h0[:9] *= 2
        h1 = h0[5:31]
        h1.narrow(0, 4, 11)[:, 2:5].mul_(0.5)
        h0[40:] = 0.25
        h2, h3, h4 = h0.split([20, 3, 24]) if step == 0 else h0.chunk(3) if step == 1 else h0.tensor_split(3)
        h5 = torch.cat([h4, h2.tanh(), h3])
        order = y0.argsort(stable=True)
        h6 = torch.cat([head(h7) * (i + 1) for i, h7 in enumerate(h5[order].split(y0.bincount(minlength=5).tolist()))])[order.argsort()]
        note.value("read", h5[3:].mean(0))
        l0 = F.cross_entropy(h6[:-1], y0[1:]) + h1[7:].square().mean() + (h5[:20].detach() - h5[27:]).abs().mean()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
