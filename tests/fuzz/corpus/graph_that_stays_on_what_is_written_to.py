"""What is written to through detach() is taken as it is, with its graph, and so is the weight that this graph has saved, which an operator made."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(1080688)
    torch.set_default_dtype(torch.float64)
    m0 = nn.utils.weight_norm(nn.Linear(5, 9))
    net = nn.ModuleList([m0])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.AdamW(trained, lr=0.01, eps=1e-3)
    for step in note.steps(2):
        x0 = note.data(torch.randn(18, 2, 4, 5))
        h0 = m0(x0)
        h1 = h0.diff(dim=0)
        h0.detach().add_(0.1)
        h2 = torch.asinh(h0)
        h3 = h1.softmax(-4)
        note.keep("h3", h3)
        h4 = torch.fft.rfft(h2, dim=0).abs()
        h5 = torch.fliplr(h0)
        h6 = h4.detach() + h2.tanh().sum()
        l0 = h5.flatten().logsumexp(0) + h6.sum() * 0
        o0.zero_grad()
        l0.backward()
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
