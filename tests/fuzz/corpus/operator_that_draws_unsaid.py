"""An operator of the program's own draws random numbers (stochastic rounding) and has no tag that says so. It was run again, and drew anew: other values, another generator."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.floor(x * 8 + torch.rand_like(x)) / 8


OPERATOR = torch.library.custom_op("koila_corpus::rounded", mutates_args=())(rounded)
OPERATOR.register_fake(torch.empty_like)
OPERATOR.register_autograd(lambda ctx, g: g.clone(), setup_context=lambda ctx, inputs, output: None)


def program(note):
    torch.manual_seed(106)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(11, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for i in note.steps(3):
        x, y = torch.randn(39, 11), torch.randint(0, 3, (39,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model[2:](OPERATOR(model[:2](x))), y)
        note.value("loss", loss.item())
        loss.backward()
        optimizer.step()
        note.value("drawn", torch.rand(1).item())
        note.state(model, trained, {})
        del loss
