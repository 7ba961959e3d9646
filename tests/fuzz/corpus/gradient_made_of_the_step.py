"""A gradient that the program sets is what the step has computed, and backward adds to it; a hook adds to another such tensor. Where backward ran out midway what had been added was lost."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(11)
    torch.set_default_dtype(torch.float64)
    net = nn.Sequential(nn.Linear(13, 41), nn.Tanh(), nn.Linear(41, 27), nn.Tanh(), nn.Linear(27, 3))
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.1)
    for step in note.steps(3):
        x0 = note.data(torch.randn(57, 13))
        y0 = torch.randint(3, (57,))
        o0.zero_grad()
        h0 = net[:2](x0)
        l0 = F.cross_entropy(net[2:](h0), y0)
        total = {"norms": l0.detach() * 0}

        def add(parameter):
            total["norms"] += parameter.grad.norm()
            parameter.grad.mul_(0.5)

        hooks = [parameter.register_post_accumulate_grad_hook(add) for parameter in trained]
        try:
            if step != 1:
                net[4].bias.grad = net[2:](h0).mean(0).detach()
            l0.backward()
        except torch.OutOfMemoryError:
            net[4].bias.grad = None
            raise
        finally:
            for hook in hooks:
                hook.remove()
        note.value("norms", total["norms"])
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
