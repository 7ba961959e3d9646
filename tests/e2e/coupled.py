"""Models whose rows depend on one another: they run at full batch, or are handed the plain error; never are they wrong."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from models import Images, Vectors
from task import family


class Coupled(Vectors):
    """Two layers with something between them that mixes the rows."""

    splits = False

    def model(self):
        return nn.ModuleList([nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, 10)])

    def mix(self, x):
        raise NotImplementedError

    def loss(self, model, x, y):
        h = torch.tanh(model[0](x))
        h = torch.tanh(model[1](self.mix(h)))
        return F.cross_entropy(model[2](h), y)


@family
class BatchNorm(Images):
    splits = False

    def model(self):
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
            nn.Linear(200, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 10))


@family
class BatchNormEvaluated(BatchNorm):
    """With the running statistics a batch norm is an ordinary layer."""

    splits = True

    def model(self):
        model = super().model()
        model[1].eval()
        model[6].eval()
        return model


@family
class Centred(Coupled):
    def mix(self, x):
        return (x - x.mean(0)) / (x.std(dim=0) + 0.1)


@family
class CheckpointOfSoftmaxOverBatch(Coupled):
    """A checkpoint counts the tensors that its second run saves against those of its first: split operators save none."""

    def model(self):
        return nn.ModuleList([nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)])

    def loss(self, model, x, y):
        def block(h):
            h = torch.tanh(model[1](h))
            h = torch.tanh(h).softmax(0).sqrt() * torch.sigmoid(h)
            return torch.tanh(model[2](h.softmax(0)))

        return F.cross_entropy(model[3](checkpoint(block, model[0](x), use_reentrant=False)), y)


@family
class CumulativeOverBatch(Coupled):
    symmetric = False

    def mix(self, x):
        return x.cumsum(0) / x.size(0)


@family
class SortedOverBatch(Coupled):
    def mix(self, x):
        return x + 0.1 * x.sort(dim=0).values.mean(0)


@family
class Distances(Coupled):
    def mix(self, x):
        return x + torch.cdist(x, x.detach() + 1.0).mean(1, keepdim=True)


@family
class SoftmaxOverBatch(Coupled):
    def mix(self, x):
        return x * F.softmax(x, dim=0)


@family
class OrderOverBatch(Coupled):
    """Rows that move: flip, roll, permutation, stride, the first row for all."""

    symmetric = False

    def mix(self, x):
        order = torch.arange(x.size(0) - 1, -1, -1)
        return x + 0.1 * x.flip(0) + 0.2 * torch.roll(x, 1, 0) + 0.3 * x[order] + 0.1 * x[0] + x[::2].mean(0)


@family
class MatrixOverBatch(Coupled):
    def mix(self, x):
        return x + torch.softmax(x @ x.t(), dim=-1) @ x / x.size(0)


@family
class CatOverBatch(Coupled):
    """A row is added to the batch and taken off."""

    symmetric = False

    def mix(self, x):
        return torch.cat([x, torch.ones(1, 32, dtype=x.dtype)], dim=0)[1:]


@family
class ReshapedBatch(Coupled):
    """The batch factor is torn apart: rows no longer are what they were."""

    symmetric = False

    def mix(self, x):
        return x.reshape(32, x.size(0)).t().contiguous() + x.t().reshape(x.shape)


@family
class Contrastive(Vectors):
    """InfoNCE: each row against all others."""

    splits = False
    symmetric = True

    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 16))

    def loss(self, model, x, y):
        a, b = F.normalize(model(x), dim=1), F.normalize(model(x * 0.9 + 0.1), dim=1)
        logits = a @ b.t() / 0.2
        target = torch.arange(x.size(0))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


@family
class WholeBatchPenalty(Vectors):
    """The statistics of the batch in the loss alone (Barlow twins, variance terms)."""

    splits = False

    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 10))

    def loss(self, model, x, y):
        z = model(x)
        centred = z - z.mean(dim=0, keepdim=True)
        covariance = centred.T @ centred / (x.size(0) - 1)
        spread = F.relu(1 - torch.sqrt(z.var(dim=0) + 1e-4)).mean()
        return F.cross_entropy(z, y) + spread + (covariance ** 2).mean()
