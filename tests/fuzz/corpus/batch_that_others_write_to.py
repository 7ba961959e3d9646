"""A batch in PyTorch's own memory, which a tensor over it by DLPack (of rows that a layer has read) or an array of NumPy's changes between the forward pass and the backward pass."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(63)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(17, 52), nn.Tanh(), nn.Linear(52, 34), nn.Tanh(), nn.Linear(34, 6))
    trained = note.trained([*m0.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    rows, labels = torch.randn(41, 17), torch.randint(6, (41,))
    array = labels.numpy()
    for step in note.steps(3):
        second = torch.from_dlpack(rows)
        h = m0[:2](rows * 1.0)
        if step > 0:
            second.mul_(0.5)
        loss = F.cross_entropy(m0[2:](h), labels.clone()) + m0(rows * 1.0).mean()
        if step == 0:
            array[:] = torch.randint(6, (41,)).numpy()
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
