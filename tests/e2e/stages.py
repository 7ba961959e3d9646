"""Models whose rows depend on one another through statistics of the batch, a loss over all rows, or a buffer: they train in micro-batches
with the full batch's numbers."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from models import Images, Task, Vectors
from task import family


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


@family
class BatchNormResNet(Images):
    """ResNet-18 as torchvision writes it, with fewer channels."""

    size = 24
    budget_rows = 48

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(8)
            self.relu = nn.ReLU(inplace=True)
            self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
            self.layer2 = nn.Sequential(BasicBlock(8, 8, 2), BasicBlock(8, 8))
            self.layer3 = nn.Sequential(BasicBlock(8, 12, 2), BasicBlock(12, 12))
            self.layer4 = nn.Sequential(BasicBlock(12, 16, 2), BasicBlock(16, 16))
            self.fc = nn.Linear(16, 10)

        def forward(self, x):
            x = self.relu(self.bn1(self.conv1(x)))
            x = self.layer1(x)
            x = self.layer2(x)
            x = self.layer3(x)
            x = self.layer4(x)
            return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))

    def model(self):
        return self.Net()


@family
class BatchNormUnet(Task):
    budget_rows = 48

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1 = self.twice(2, 6)
            self.down2 = self.twice(6, 8)
            self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
            self.mix = self.twice(12, 6)
            self.out = nn.Conv2d(6, 3, 1)

        @staticmethod
        def twice(inputs, outputs):
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
                                 nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

        def forward(self, x):
            a = self.down1(x)
            b = self.down2(F.max_pool2d(a, 2))
            return self.out(self.mix(torch.cat([self.up(b), a], dim=1)))

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randn(rows, 2, 16, 16), torch.randint(3, (rows, 16, 16))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


def embedder(width=24, out=16):
    return nn.Sequential(nn.Linear(width, 48, bias=False), nn.BatchNorm1d(48), nn.SiLU(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, out, bias=False))


# ---- batch norm, in each way there is to have it -----------------------------------------------------------------------------


@family
class BatchNormOfSequences(Task):
    """[B, C, L], without affine parameters; then over the last dimension of a transposed one."""

    budget_rows = 256

    def model(self):
        return nn.ModuleList([nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 12), nn.BatchNorm1d(12, momentum=0.3), nn.Linear(12, 5)])

    def data(self, rows):
        return torch.randn(rows, 4, 10), torch.randint(5, (rows,))

    def loss(self, model, x, y):
        h = F.silu(model[1](model[0](x))).transpose(1, 2)
        h = torch.tanh(model[3](model[2](h).transpose(1, 2)))
        return F.cross_entropy(model[4](h.mean(-1)), y)


@family
class BatchNormOfVolumes(Task):
    """3d; a cumulative average of the statistics (momentum=None); none at all."""

    budget_rows = 128

    def model(self):
        return nn.Sequential(nn.Conv3d(2, 6, 3, padding=1, bias=False), nn.BatchNorm3d(6, momentum=None), nn.SiLU(), nn.Conv3d(6, 4, 3, padding=1, bias=False),
                             nn.BatchNorm3d(4, track_running_stats=False), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 64, 5))

    def data(self, rows):
        return torch.randn(rows, 2, 4, 4, 4), torch.randint(5, (rows,))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


@family
class BatchNormFunctional(Vectors):
    """Statistics of the batch without a module, after a layer that is frozen, and before one in evaluation mode."""

    def model(self):
        model = nn.ModuleList([nn.Linear(24, 32), nn.BatchNorm1d(32), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 10)])
        model[0].requires_grad_(False)
        model[3].eval()
        return model

    def loss(self, model, x, y):
        h = F.batch_norm(model[0](x), None, None, model[1].weight, model[1].bias, training=True)
        h = model[3](model[2](torch.tanh(h)))
        h = F.batch_norm(torch.sin(h), model[1].running_mean, model[1].running_var, training=True, momentum=0.2, eps=1e-3)
        return F.cross_entropy(model[4](h), y)


@family
class BatchNormWatched(Vectors):
    """The running statistics are read by pointer, and move by operators that no version tells of."""

    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Linear(32, 48), nn.BatchNorm1d(48), nn.SiLU(), nn.Linear(48, 10))

    def step(self, model, optimizer, data, record):
        running = {name: buffer for name, buffer in model.named_buffers() if buffer.dim() > 0}
        for name, buffer in running.items():
            record.value(f"before {name}", buffer)
        loss = self.loss(model, *data)
        for name, buffer in running.items():
            record.value(f"after {name}", buffer)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class BatchNormSynchronised(Vectors):
    """As it comes out of convert_sync_batchnorm, in one process."""

    def model(self):
        return nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(embedder(out=32), nn.BatchNorm1d(32), nn.Linear(32, 10)))


@family
class BatchNormHalf(Images):
    """Under autocast its input is bfloat16, and its parameters are not."""

    tolerance = 2e-2

    def model(self):
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(),
                             nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))

    def loss(self, model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        return F.cross_entropy(out.float(), y)


@family
class BatchNormTwice(Vectors):
    """One module on two inputs of a step: its statistics move twice, one after the other."""

    def model(self):
        return nn.ModuleList([embedder(out=32), nn.BatchNorm1d(32), nn.Linear(32, 10)])

    def loss(self, model, x, y):
        a, b = model[0](x), model[0](x * 0.5 + 0.3)
        return F.cross_entropy(model[2](torch.tanh(model[1](a)) + torch.tanh(model[1](b))), y)


@family
class BatchNormFrozenInPart(Images):
    """The first layers are fine as they are: their statistics stand still."""

    def model(self):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
                              nn.Flatten(), nn.Linear(8 * 64, 10))
        model[0].requires_grad_(False)
        model[1].requires_grad_(False).eval()
        return model


@family
class BatchNormBetweenSteps(Vectors):
    """Between steps the model is evaluated, and its statistics are taken anew, both without gradients."""

    def model(self):
        return nn.Sequential(embedder(out=32), nn.BatchNorm1d(32), nn.SiLU(), nn.Linear(32, 10))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)

    def step(self, model, optimizer, data, record):
        super().step(model, optimizer, data, record)
        x, y = data
        with torch.no_grad():
            for _ in range(2):
                model(x + 0.1)
            model.eval()
            out = model(x)
            record.value("evaluation", F.cross_entropy(out, y))
            record.value("right", (out.argmax(1) == y).sum())
            model.train()


@family
class InstanceNormRunning(Images):
    def model(self):
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.SiLU(),
                             nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8, track_running_stats=True), nn.SiLU(),
                             nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


@family
class StatisticsByHand(Images):
    """Batch norm as people write it who do not know that there is one."""

    def model(self):
        return nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Linear(8, 16, bias=False), nn.Linear(16, 10)])

    def loss(self, model, x, y):
        h = model[0](x)
        h = torch.tanh((h - h.mean((0, 2, 3), keepdim=True)) / torch.sqrt(h.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-5))
        h = model[1](h)
        var, mean = torch.var_mean(h, dim=(0, 2, 3), correction=1)
        h = torch.tanh((h - mean[:, None, None]) * torch.rsqrt(var + 1e-3)[:, None, None])
        h = model[2](h.mean((2, 3)))
        h = (h - h.mean(0)) / (h.std(0) + 0.1)
        return F.cross_entropy(model[3](torch.tanh(h)), y)


# ---- losses over all rows ----------------------------------------------------------------------------------------------------


@family
class Clip(Task):
    """Two towers, and each pair against all others."""

    budget_rows = 512

    def model(self):
        model = nn.ModuleDict({"image": nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1), nn.SiLU(),
                                                      nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 12)),
                               "text": nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 12))})
        model.scale = nn.Parameter(torch.tensor(1.5))
        return model

    def data(self, rows):
        return torch.randn(rows, 1, 10, 10), torch.randint(30, (rows, 7))

    def loss(self, model, image, text):
        a = F.normalize(model["image"](image), dim=-1)
        b = F.normalize(model["text"](text).mean(1), dim=-1)
        logits = model.scale.exp() * a @ b.t()
        target = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


class OfEmbeddings(Vectors):
    """A loss over the embeddings of the whole batch, behind a model with batch norm."""

    def model(self):
        return embedder()

    def loss(self, model, x, y):
        return self.coupled(model(x), y)


@family
class SimClr(OfEmbeddings):
    budget_rows = 512

    def loss(self, model, x, y):
        z = F.normalize(model(torch.cat([x * 0.9, x + 0.2 * x.cos()])), dim=1)
        similarity = z @ z.t() / 0.5
        similarity = similarity.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), float("-inf"))
        n = len(x)
        target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return F.cross_entropy(similarity, target)


@family
class SupCon(OfEmbeddings):
    budget_rows = 512

    def coupled(self, z, y):
        z = F.normalize(z, dim=1)
        similarity = z @ z.t() / 0.5
        itself = torch.eye(len(z), dtype=torch.bool)
        same = (y[:, None] == y[None]) & ~itself
        log_probability = similarity - torch.logsumexp(similarity.masked_fill(itself, -1e9), dim=1, keepdim=True)
        return -(log_probability * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


@family
class TripletMining(OfEmbeddings):
    """The hardest positive and the hardest negative of each row within the batch."""

    budget_rows = 512

    def coupled(self, z, y):
        distance = torch.cdist(z, z + 1e-3)
        same = y[:, None] == y[None]
        positive = distance.masked_fill(~same, -1.0).amax(1)
        negative = distance.masked_fill(same, 1e3).amin(1)
        return F.softplus(positive - negative + 0.3).mean()


@family
class BarlowTwins(OfEmbeddings):
    def loss(self, model, x, y):
        a, b = model(x), model(x * 0.8 + 0.1)
        a, b = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
        c = a.T @ b / len(x)
        on = torch.diagonal(c).add(-1).pow(2).sum()
        off = c.flatten()[:-1].view(c.size(0) - 1, c.size(0) + 1)[:, 1:].pow(2).sum()
        return on + 5e-3 * off


@family
class VicReg(OfEmbeddings):
    def loss(self, model, x, y):
        a, b = model(x), model(x * 0.8 + 0.1)
        invariance = F.mse_loss(a, b)
        a, b = a - a.mean(dim=0), b - b.mean(dim=0)
        spread = F.relu(1 - torch.sqrt(a.var(dim=0) + 1e-4)).mean() + F.relu(1 - torch.sqrt(b.var(dim=0) + 1e-4)).mean()
        n, d = a.shape
        ca, cb = (a.T @ a) / (n - 1), (b.T @ b) / (n - 1)
        off = ~torch.eye(d, dtype=torch.bool)
        return 25 * invariance + 25 * spread + ca[off].pow(2).sum() / d + cb[off].pow(2).sum() / d


@family
class TopLosses(OfEmbeddings):
    """The mean of the worst third (conditional value at risk)."""

    def coupled(self, z, y):
        return F.cross_entropy(z, y, reduction="none").topk(len(z) // 3).values.mean()


@family
class RobustWeights(OfEmbeddings):
    """Distributionally robust: rows weighted by the softmax of their own losses."""

    def coupled(self, z, y):
        losses = F.cross_entropy(z, y, reduction="none")
        return (F.softmax(losses.detach() / 0.5, dim=0) * losses).sum()


@family
class RootOfMeanSquare(OfEmbeddings):
    def coupled(self, z, y):
        return torch.sqrt(F.mse_loss(z, F.one_hot(y, z.size(1)).to(z.dtype)))


@family
class LogMeanExp(OfEmbeddings):
    def coupled(self, z, y):
        losses = F.cross_entropy(z, y, reduction="none")
        return torch.logsumexp(losses, 0) - torch.log(torch.tensor(float(len(losses)))) + losses.exp().mean().log()


@family
class Dice(Task):
    """Overlap over all pixels of the batch."""

    budget_rows = 64

    def model(self):
        return BatchNormUnet.Net()

    def data(self, rows):
        return torch.randn(rows, 2, 12, 12), torch.randint(3, (rows, 12, 12))

    def loss(self, model, x, y):
        p = model(x).softmax(1)
        t = F.one_hot(y, 3).permute(0, 3, 1, 2).to(p.dtype)
        dims = (0, 2, 3)
        return 1 - ((2 * (p * t).sum(dims) + 1) / (p.sum(dims) + t.sum(dims) + 1)).mean()


@family
class Correlation(OfEmbeddings):
    """One less the concordance of prediction and target (Lin, 1989), and Pearson's coefficient."""

    def coupled(self, z, y):
        a, b = z[:, 0], y.to(z.dtype) + z[:, 1].detach()
        ca, cb = a - a.mean(), b - b.mean()
        pearson = (ca * cb).sum() / (ca.norm() * cb.norm())
        concordance = 2 * (ca * cb).mean() / (a.var(unbiased=False) + b.var(unbiased=False) + (a.mean() - b.mean()) ** 2)
        return 2 - pearson - concordance


# ---- buffers written in forward ----------------------------------------------------------------------------------------------


class QuantiserNet(nn.Module):
    """A codebook kept by exponential moving averages of sums over the batch."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 6))
        self.decode = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 24))
        self.register_buffer("codes", torch.randn(8, 6))
        self.register_buffer("counts", torch.ones(8))
        self.register_buffer("sums", self.codes.clone())
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        z = self.encode(x)
        distances = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codes.t() + self.codes.pow(2).sum(1)
        picked = distances.argmin(1)
        onehot = F.one_hot(picked, 8).to(z.dtype)
        quantised = F.embedding(picked, self.codes)
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.9).add_(onehot.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(onehot.t() @ z, alpha=0.1)
                self.codes.copy_(self.sums / (self.counts + 1e-5).unsqueeze(1))
                self.calls += 1
        return self.decode(z + (quantised - z).detach()), F.mse_loss(z, quantised.detach())


@family
class VectorQuantiser(Vectors):
    def model(self):
        return QuantiserNet()

    def data(self, rows):
        return (torch.randn(rows, 24),)

    def loss(self, model, x):
        out, commitment = model(x)
        return F.mse_loss(out, x) + 0.25 * commitment


class QueueNet(nn.Module):
    """MoCo: a key encoder that follows, and a queue of keys of earlier batches."""

    def __init__(self):
        super().__init__()
        self.query, self.key = embedder(), embedder()
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(16, 3072), dim=0))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        q = F.normalize(self.query(x), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.key.parameters(), self.query.parameters()):
                slow.data = slow.data * 0.99 + fast.data * 0.01
            k = F.normalize(self.key(x * 0.9), dim=1)
        positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / 0.2
        with torch.no_grad():
            at = int(self.at)
            self.queue[:, at:at + len(k)] = k.T
            self.at[0] = (at + len(k)) % 1024
        return logits, torch.zeros(len(x), dtype=torch.long)


@family
class Moco(Vectors):
    symmetric = False
    budget_rows = 512

    def model(self):
        return QueueNet()

    def loss(self, model, x, y):
        return F.cross_entropy(*model(x))


@family
class SpectralNormAndBatchNorm(Images):
    """A power iteration in each forward pass."""

    def model(self):
        norm = torch.nn.utils.parametrizations.spectral_norm
        return nn.Sequential(norm(nn.Conv2d(3, 8, 3, padding=1)), nn.BatchNorm2d(8), nn.SiLU(), nn.utils.spectral_norm(nn.Conv2d(8, 8, 3)), nn.SiLU(),
                             nn.AdaptiveAvgPool2d(1), nn.Flatten(), norm(nn.Linear(8, 10)))


@family
class CountersAndStatistics(Vectors):
    """A forward pass that counts rows, and keeps the mean of what it has seen and the largest."""

    def model(self):
        model = embedder(out=10)
        model.register_buffer("seen", torch.zeros(()))
        model.register_buffer("mean", torch.zeros(10))
        model.register_buffer("largest", torch.zeros(10))
        return model

    def loss(self, model, x, y):
        z = model(x)
        before = model.mean.clone()
        with torch.no_grad():
            model.seen += len(z)
            model.mean.lerp_(z.mean(0), 0.1)
            torch.maximum(model.largest, z.abs().amax(0), out=model.largest)
        return F.cross_entropy(z - before + model.mean, y)
