"""Samples of a gamma distribution, through which gradients flow, are drawn for the full batch: how many numbers each takes from the generator depends on them."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(32)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 2), nn.Softplus())
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(35, 12))
        h0 = m0(x0) + 0.1
        h1 = torch.distributions.Gamma(h0[:, 0], h0[:, 1]).rsample()
        h2 = torch._standard_gamma(h0)
        l0 = h1.square().mean() + h2.sin().mean()
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
