"""torch.autograd.grad() of a base that was written to through a view, as StyleGAN2's path length regularisation asks of mixed styles."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(37)
    torch.set_default_dtype(torch.float64)
    mapping, synthesis = nn.Linear(16, 24), nn.Linear(24, 30)
    net = nn.ModuleList([mapping, synthesis])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(3):
        w = torch.stack([mapping(note.data(torch.randn(38, 16)))] * 2, 1)
        w[:, 1] = mapping(torch.randn(38, 16))
        image = synthesis(w[:, 0]).tanh() * synthesis(w[:, 1])
        (jacobian,) = torch.autograd.grad((image * torch.randn_like(image)).sum(), w, create_graph=step != 1, retain_graph=True)
        loss = jacobian.square().sum(2).mean() + image.square().mean()
        note.value("loss", loss.item())
        o0.zero_grad()
        loss.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
