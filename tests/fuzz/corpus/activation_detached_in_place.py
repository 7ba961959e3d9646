"""`detach_()` makes a leaf of what the step has computed. A split step went on with its graph, and took its gradient for none of the program's."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(14)
    torch.set_default_dtype(torch.float64)
    net = nn.Sequential(nn.Linear(17, 45), nn.Tanh(), nn.Linear(45, 23), nn.Tanh(), nn.Linear(23, 3))
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.1)
    for step in note.steps(3):
        x0 = note.data(torch.randn(51, 17))
        o0.zero_grad()
        h0 = net[:2](x0)
        h0.detach_()
        note.value("flags", torch.tensor([h0.requires_grad, h0.grad_fn is None, h0.is_leaf]).double())
        if step == 1:
            h0.requires_grad_()
        l0 = F.cross_entropy(net[2:](h0 if h0.requires_grad else h0 * 2), torch.randint(3, (51,)))
        l0.backward()
        if step == 1:
            note.value("gradient", h0.grad)
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
