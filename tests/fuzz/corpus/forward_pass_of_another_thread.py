"""The forward pass, or the first half of it, is run by another thread, which has ended when the loss is differentiated. PyTorch numbers nodes by the thread that makes them, and the graph was taken for the step's own: backward ran along it for a second time."""

import threading

import torch
import torch.nn as nn
import torch.nn.functional as F


def elsewhere(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    if not found:
        raise torch.OutOfMemoryError("the thread ran out of memory")
    return found[0]


def program(note):
    torch.manual_seed(77)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(16, 47), nn.Tanh(), nn.Linear(47, 34), nn.Tanh(), nn.Linear(34, 3))
    trained = note.trained([*m0.parameters()])
    for step in note.steps(3):
        x, y = torch.randn(45, 16), torch.randint(3, (45,))
        if step != 1:
            out = elsewhere(lambda x=x: m0(x))
        else:
            out = m0[2:](elsewhere(lambda x=x: m0[:2](x)))
        loss = F.cross_entropy(out, y)
        m0.zero_grad()
        loss.backward()
        note.value("loss", loss.item())
        note.state(m0, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
