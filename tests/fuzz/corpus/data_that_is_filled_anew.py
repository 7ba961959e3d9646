"""An array of NumPy's is filled with the next batch between the forward pass and the backward pass, and once between two reads of it. The graph has saved copies."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(31)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(13, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5))
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    labels = torch.randint(5, (34,)).numpy()
    rows = torch.randn(34, 13).numpy()
    y0, x0 = torch.from_numpy(labels), torch.from_numpy(rows)
    for step in note.steps(3):
        h0 = m0(x0 * 1.0)
        if step == 1:
            rows[:] = torch.randn(34, 13).numpy()
            h0 = h0 + m0(x0 * 1.0)
        l0 = F.cross_entropy(h0, y0.clone())
        labels[:] = torch.randint(5, (34,)).numpy()
        rows[:] = torch.randn(34, 13).numpy()
        note.value("loss", l0.item())
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
