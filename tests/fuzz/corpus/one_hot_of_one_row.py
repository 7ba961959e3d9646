"""one_hot() lies in memory in another order on the meta device, and one row does not show it: what the full batch looked like was no view of itself."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(933049)
    torch.set_default_dtype(torch.float64)
    m0 = nn.RNN(2, 4, batch_first=True, bidirectional=True, num_layers=2)
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        x0 = note.data(torch.randn(13, 5, 2)).requires_grad_()
        h0 = m0(x0)[0]
        h1 = F.one_hot((h0.detach() * 3).long().clamp(0, 5), 6).double()
        h2 = h1.view(-1).view(13, 5, 8, 6)
        l0 = F.normalize(h0.flatten(1), dim=1).square().sum() * 0.1 + (h0 * h2.sum(3)).mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.value('strides', h1.stride())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
