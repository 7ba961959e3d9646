"""What the step has made, and backward needs, is written to in between: plain PyTorch raises, and a step in micro-batches went on with what it makes again.

Labels and activations, seen by the program before the write and not; and writes that nobody minds.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Linear(6, 8)
    m1 = nn.Linear(8, 3)
    net = nn.ModuleList([m0, m1])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(7):
        x0 = note.data(torch.randn(8, 6))
        y0 = torch.randint(3, (8,))
        y1 = y0.clone()
        h0 = m0(x0)
        h1 = h0.exp()
        h2 = h0 + 1
        l0 = F.cross_entropy(m1(h1 + h2), y1)
        if step % 2 == 0:
            note.value('seen', [int(y1.sum().item()), bool((h1 > 100).any()), bool((h2 > 100).any())])
        with torch.no_grad():
            if step // 2 == 0:
                y1.fill_(0)
            if step // 2 == 1:
                h1.mul_(2)
            if step // 2 == 2:
                h2.mul_(2)  # nobody has saved it
            if step // 2 == 3:
                h1.view(-1)[:3] = 0
        o0.zero_grad()
        try:
            l0.backward()
            note.value('raised', False)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            note.value('raised', 'modified by an inplace operation' in str(error))
            o0.zero_grad()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
