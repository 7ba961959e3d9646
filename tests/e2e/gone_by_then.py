"""Steps that read what is gone, or is something else, by the time that memory runs out, each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

    koila run --ladder 0,1 -- python tests/e2e/gone_by_then.py NAME...
"""

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

from under_budgets import Programs, main, train

PROGRAMS = program = Programs()
program.shares = {"minibatches_by_numpy": (0.95, 0.85, 0.75, 0.5), "codebook_moved_by_data": (0.93, 0.88, 0.82, 0.6, 0.45)}


@program
def minibatches_by_numpy(out):
    """A minibatch as in PPO: rows that an array of NumPy's picks. PyTorch makes a tensor of the array for each index, and drops it."""
    rows = 2048
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    seen, returns, values = torch.randn(rows, 6), torch.randn(rows), torch.randn(rows)
    order = numpy.random.default_rng(7).permutation(rows)
    turn = iter(range(1000))

    def loss():
        begin = next(turn) % 2 * (rows // 2)
        picked = order[begin : begin + rows // 2]
        value = model(seen[picked]).view(-1)
        clipped = values[picked] + torch.clamp(value - values[picked], -0.2, 0.2)
        return torch.max((value - returns[picked]) ** 2, (clipped - returns[picked]) ** 2).mean()

    train(torch.optim.Adam(model.parameters(), 3e-3), out, loss)
    return model


class Codebook(nn.Module):
    """Moves its entries through `.data`, after a view of them has been read."""

    def __init__(self):
        super().__init__()
        for name, value in {"entries": torch.randn(4, 12), "sizes": torch.ones(12), "sums": torch.randn(4, 12)}.items():
            self.register_buffer(name, value)

    def forward(self, x):
        flat = x.reshape(-1, 4)
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.entries + self.entries.pow(2).sum(0, keepdim=True)
        index = (-distance).max(1)[1]
        chosen = F.one_hot(index, 12).type(flat.dtype)
        quantized = F.embedding(index.view(x.shape[:-1]), self.entries.transpose(0, 1))
        self.sizes.data.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
        self.sums.data.mul_(0.9).add_((flat.transpose(0, 1) @ chosen).detach(), alpha=0.1)
        self.entries.data.copy_(self.sums / (self.sizes + 1e-5).unsqueeze(0))
        return x + (quantized - x).detach(), (quantized.detach() - x).pow(2).mean()


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.codebook = Codebook()
        self.up = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace=True), nn.ConvTranspose2d(8, 3, 4, 2, 1))

    def forward(self, x):
        quantized, commitment = self.codebook(self.down(x).permute(0, 2, 3, 1))
        return self.up(quantized.permute(0, 3, 1, 2)), commitment


@program
def codebook_moved_by_data(out):
    model = Quantized()

    def loss():
        x = torch.randn(24, 3, 8, 8)
        made, commitment = model(x)
        return F.mse_loss(made, x) + 0.25 * commitment

    train(torch.optim.Adam(model.parameters(), 3e-3), out, loss)
    return model


@program
def codebook_moved_after_its_transpose(out):
    """An average that moves in two writes; distances read its transpose."""
    down, up = (nn.Sequential(nn.Linear(a, 128), nn.ReLU(), nn.Linear(128, b)) for a, b in ((64, 16), (16, 64)))
    model = nn.ModuleList([down, up])
    model.register_buffer("entries", torch.randn(32, 16))

    def loss():
        x = torch.rand(512, 64) - 0.5
        z = model[0](x)
        nearest = F.one_hot((-z @ model.entries.t()).argmin(1), 32).to(z.dtype)
        code = nearest @ model.entries
        with torch.no_grad():
            model.entries.mul_(0.95).add_(nearest.t() @ z, alpha=0.05 / 60)
        return F.mse_loss(model[1](z + (code - z).detach()), x)

    train(torch.optim.SGD(model.parameters(), 0.05), out, loss)
    return model


@program
def mean_moved_after_a_view(out):
    down, up = (nn.Sequential(nn.Linear(a, 128), nn.ReLU(), nn.Linear(128, b)) for a, b in ((64, 16), (16, 64)))
    model = nn.ModuleList([down, up])
    model.register_buffer("mean", torch.randn(16))

    def loss():
        x = torch.rand(512, 64) - 0.5
        z = model[0](x)
        centred = z - model.mean.view(1, -1)
        with torch.no_grad():
            model.mean.copy_(0.9 * model.mean + 0.1 * z.mean(0))
        return F.mse_loss(model[1](centred), x)

    train(torch.optim.SGD(model.parameters(), 0.05), out, loss)
    return model


if __name__ == "__main__":
    main(PROGRAMS)
