"""The program gives an activation other memory (`h.data = ...`) between forward and backward. PyTorch's graph has saved that tensor, and its backward pass reads the new values. A split step computed the activation again, and used the old values without a word."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(11)
    torch.set_default_dtype(torch.float64)
    first, second, last = nn.Sequential(nn.Linear(5, 24), nn.Tanh()), nn.Sequential(nn.Linear(24, 24), nn.Tanh()), nn.Linear(24, 3)
    net = nn.ModuleList([first, second, last])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.1)
    for step in note.steps(3):
        x0 = note.data(torch.randn(30, 5))
        h0 = first(x0)
        h1 = second(h0)
        l0 = F.cross_entropy(last(h1), torch.randint(3, (30,)))
        if step > 0:
            h0.data = h0.data.bfloat16().double() * 0.5
        if step == 1:
            del h0
        o0.zero_grad()
        l0.backward()
        note.value("loss", l0.item())
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
