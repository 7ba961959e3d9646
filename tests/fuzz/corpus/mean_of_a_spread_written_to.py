"""The mean of std_mean() is the program's to write to, and the graph of the deviation had saved it: backward raised an error that plain PyTorch does not raise."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(914807)
    torch.set_default_dtype(torch.float64)
    net = nn.Linear(3, 2)
    trained = note.trained([*net.parameters()])
    for step in note.steps(2):
        h = net(note.data(torch.randn(12, 3)))
        deviation, mean = torch.std_mean(h, 0)
        mean.tanh_()
        variance, other = torch.var_mean(h * 2, 0, keepdim=True)
        other.mul_(0.5)
        loss = deviation.pow(2).sum() + variance.sum() + h.pow(2).mean()
        loss.backward()
        note.value('loss', loss.detach())
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
