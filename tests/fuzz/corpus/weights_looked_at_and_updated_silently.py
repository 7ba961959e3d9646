"""The program looks at weights through NumPy while a graph stays, and a fused optimizer, which counts no version up, writes to them: no write of the program's own."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(43)
    torch.set_default_dtype(torch.float64)
    net = nn.ModuleList([nn.Linear(12, 40), nn.Linear(40, 6)])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05, momentum=0.8, fused=True)
    for step in note.steps(3):
        loss = net[1](net[0](note.data(torch.randn(36, 12))).tanh()).square().mean()
        o0.zero_grad()
        loss.backward(retain_graph=True)
        note.value("largest", float(abs(net[0].weight.detach().numpy()).max()))
        o0.step()
        note.value("loss", loss.item())
        note.value("largest", float(abs(net[1].weight.detach().numpy()).max()))
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
