"""The data of a closure is written to through a view of a view, after an operator without gradient has read it: the tape holds a copy, as it was. A conversion made the views again, of the copy, and put
them into the place of the program's own, which no longer saw what was written to the data afterwards."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def program(note):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    rest = torch.randn(200, 100)  # so that a copy of the data is little beside what is there
    net = nn.PReLU()
    trained = note.trained([*net.parameters()])
    optimizer = torch.optim.LBFGS(trained, lr=0.1, max_iter=4, line_search_fn="strong_wolfe")
    for step in note.steps(2):
        x = note.data(torch.randn(12, 12))
        near = (torch.rand(12, 12) > 0.5).double()

        def closure():
            distances = torch.inner(x, x)
            rows = x.reshape(-1, 12)
            note.keep("rows", rows.detach())
            center = rows.mean()
            rows.view(12, -1).add_(0.1)
            h = net(distances)
            moved = torch.rsub(h, x, alpha=0.5)
            loss = F.multilabel_soft_margin_loss(h, near) + 0 * moved.sum() + 0 * center
            optimizer.zero_grad()
            (loss / 2).backward()
            note.value("loss", loss)
            return loss

        optimizer.step(closure)
        note.state(net, trained, {"rest": rest})
