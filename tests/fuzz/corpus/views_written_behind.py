"""Buffers that are written to through `.data`, where no version tells, while views of them have been read: by an operator without a gradient, by one whose gradient reads what is there by then, and
again after the write."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Books(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.up = nn.Linear(6, 8), nn.Linear(8, 6)
        self.register_buffer("book", torch.randn(8, 10))
        self.register_buffer("scale", torch.rand(4, 8) + 0.5)
        self.register_buffer("seen", torch.zeros(10))

    def forward(self, x, kind):
        h = torch.tanh(self.inner(x)).reshape(-1, 8)
        columns = self.book.t()
        index = (h.detach() @ columns.t()).max(1)[1] if kind != 1 else (h @ self.book).max(1)[1]
        found = F.embedding(index, columns)
        first = self.scale[1]
        if kind == 2:
            h = h * first
        if kind == 3:
            h = h @ self.book.t()[:8]
        self.seen.data.add_(F.one_hot(index, 10).sum(0))
        self.book.data.mul_(0.9).add_((h.detach().t() @ F.one_hot(index, 10).to(h.dtype))[:, :10], alpha=0.01)
        self.scale.data.mul_(1.01)
        again = F.embedding(index, columns) + first
        if kind == 4:
            columns.data.mul_(1.1)
            again = again + columns[index]
        return self.up(h + (found - h).detach() + 0.1 * again * h).reshape(x.shape), (found.detach() - h).pow(2).mean()


def program(note):
    torch.manual_seed(11)
    torch.set_default_dtype(torch.float64)
    model = Books()
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.1)
    kinds = (0, 1, 4, 2, 3)
    for i in note.steps(5):
        x = torch.randn(61, 7, 6)
        made, commitment = model(x, kinds[i])
        loss = F.mse_loss(made, x) + 0.25 * commitment
        note.value("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
