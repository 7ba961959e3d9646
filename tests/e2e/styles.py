"""Losses and training loops: the ways people write a step around a model."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint

from models import Images, LanguageModel, GptNet, Tokens, Vectors
from task import Task, family


class Regression(Task):
    budget_rows = 1024

    def model(self):
        return nn.Sequential(nn.Linear(20, 28), nn.Tanh(), nn.Linear(28, 28), nn.Tanh(), nn.Linear(28, 6))

    def data(self, rows):
        return torch.randn(rows, 20), torch.randn(rows, 6)


class SmallNet(Vectors):
    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))


# ---- losses ------------------------------------------------------------------------------------------------------------------


@family
class SquaredSum(Regression):
    learning_rate = {"sgd": 1e-4, "adamw": 1e-3}

    def loss(self, model, x, y):
        return (model(x) - y).pow(2).sum()


@family
class SquaredOverBatch(Regression):
    def loss(self, model, x, y):
        return ((model(x) - y) ** 2).sum() / x.shape[0]


@family
class SquaredMeanTwice(Regression):
    def loss(self, model, x, y):
        return ((model(x) - y) ** 2).mean(dim=1).mean()


@family
class SmoothL1(Regression):
    def loss(self, model, x, y):
        out = model(x)
        return F.smooth_l1_loss(out, y) + 0.5 * F.huber_loss(out, y, delta=0.7) + 0.1 * nn.L1Loss()(out, y)


@family
class GaussianLikelihood(Regression):
    def loss(self, model, x, y):
        mean, spread = model(x).split(3, dim=1)
        return nn.GaussianNLLLoss()(mean, y[:, :3], F.softplus(spread) + 0.1) + nn.PoissonNLLLoss()(mean, y[:, 3:].abs())


@family
class RootMeanSquare(Regression):
    """The tail is not linear in the sum over rows."""

    def loss(self, model, x, y):
        return torch.sqrt(F.mse_loss(model(x), y) + 1e-8)


@family
class LogOfMean(Regression):
    def loss(self, model, x, y):
        errors = (model(x) - y).pow(2).mean(1)
        return torch.log(errors.mean()) + errors.mean() / (errors.mean() + 1)


@family
class WeightedSmoothedCrossEntropy(LanguageModel):
    """Class weights, label smoothing and ignored targets together: the divisor depends on which targets are where."""

    def model(self):
        return GptNet(layers=1)

    def loss(self, model, x, y):
        logits = model(x)
        weight = torch.linspace(0.2, 2.0, 40, dtype=logits.dtype)
        return F.cross_entropy(logits.transpose(1, 2), y, weight=weight, label_smoothing=0.15, ignore_index=-100)


@family
class WeightedNll(SmallNet):
    def loss(self, model, x, y):
        weight = torch.linspace(0.1, 1.0, 10, dtype=x.dtype)
        return F.nll_loss(F.log_softmax(model(x), dim=1), y, weight=weight, ignore_index=3)


@family
class ProbabilityTargets(SmallNet):
    def loss(self, model, x, y):
        target = F.one_hot(y, 10).to(x.dtype) * 0.9 + 0.01
        return F.cross_entropy(model(x), target, label_smoothing=0.1)


@family
class KlBatchMean(SmallNet):
    def loss(self, model, x, y):
        target = torch.softmax(x[:, :10], dim=1)
        return F.kl_div(F.log_softmax(model(x), 1), target, reduction="batchmean")


@family
class Distillation(SmallNet):
    """A frozen teacher without grad; temperature; a sum of two losses."""

    def model(self):
        return nn.ModuleDict({"student": super().model(), "teacher": super().model().requires_grad_(False)})

    def loss(self, model, x, y):
        with torch.no_grad():
            soft = F.log_softmax(model["teacher"](x) / 2.0, dim=-1)
        logits = model["student"](x)
        hard = F.cross_entropy(logits, y)
        return 0.3 * hard + 0.7 * 4.0 * F.kl_div(F.log_softmax(logits / 2.0, -1), soft, reduction="batchmean", log_target=True)


@family
class BinaryWithPositiveWeight(SmallNet):
    def loss(self, model, x, y):
        target = (x[:, :10] > 0.3).to(x.dtype)
        return nn.BCEWithLogitsLoss(pos_weight=torch.linspace(1, 3, 10, dtype=x.dtype))(model(x), target)


@family
class SampleWeights(SmallNet):
    def loss(self, model, x, y):
        weight = x[:, 0].abs() + 0.1
        losses = F.cross_entropy(model(x), y, reduction="none")
        return (losses * weight).sum() / weight.sum()


@family
class MaskedMean(LanguageModel):
    def model(self):
        return GptNet(layers=1)

    def loss(self, model, x, y):
        mask = y != -100
        losses = F.cross_entropy(model(x).reshape(-1, 40), y.reshape(-1).clamp(min=0), reduction="none").view(y.shape)
        return (losses * mask).sum() / mask.sum()


@family
class BooleanIndex(LanguageModel):
    """Rows picked by a mask: the number of rows depends on data."""

    splits = False

    def model(self):
        return GptNet(layers=1)

    def loss(self, model, x, y):
        mask = y != -100
        return F.cross_entropy(model(x)[mask], y[mask])


@family
class HardExamples(SmallNet):
    """Only the worst rows count: a top-k over the batch."""

    splits = False

    def loss(self, model, x, y):
        losses = F.cross_entropy(model(x), y, reduction="none")
        return losses.topk(4).values.mean()


@family
class MarginLosses(SmallNet):
    def loss(self, model, x, y):
        out = model(x)
        sign = torch.where(y % 2 == 0, 1, -1)
        return (F.multi_margin_loss(out, y) + F.cosine_embedding_loss(out, x[:, :10], sign)
                + 0.1 * F.soft_margin_loss(out[:, 0], sign.to(out.dtype)))


@family
class L2Regularised(SmallNet):
    def loss(self, model, x, y):
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        return F.cross_entropy(model(x), y) + 1e-3 * penalty


@family
class SeveralLosses(Images):
    """Two heads, a penalty on activations, losses collected in a list."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.kind, self.box = nn.Conv2d(3, 8, 3), nn.Linear(8, 10), nn.Linear(8, 4)

        def forward(self, x):
            h = torch.tanh(self.body(x))
            pooled = h.mean(dim=(2, 3))
            return {"kind": self.kind(pooled), "box": self.box(pooled), "features": h}

    def model(self):
        return self.Net()

    def loss(self, model, x, y):
        out = model(x)
        losses = [F.cross_entropy(out["kind"], y), F.l1_loss(out["box"], x[:, 0, 0, :4]), 0.01 * out["features"].abs().mean()]
        return torch.stack(losses).sum() + 0.1 * sum(losses)


@family
class Mixup(SmallNet):
    """The order, drawn in the loss, dies with it."""

    rescued_in_backward = False
    held_per_row = 4 * 24 * 4

    def loss(self, model, x, y):
        order = torch.randperm(x.size(0))
        x = 0.7 * x + 0.3 * x[order]
        out = model(x)
        return 0.7 * F.cross_entropy(out, y) + 0.3 * F.cross_entropy(out, y[order])

    symmetric = False


@family
class NegativeSampling(Task):
    """Embeddings looked up at the size of the batch times the negatives."""

    budget_rows = 1024

    def model(self):
        return nn.ModuleDict({"word": nn.Embedding(50, 12), "context": nn.Embedding(50, 12)})

    def data(self, rows):
        return torch.randint(50, (rows,)), torch.randint(50, (rows,)), torch.randint(50, (rows, 6))

    def loss(self, model, word, near, far):
        w = model["word"](word)
        positive = F.logsigmoid((w * model["context"](near)).sum(-1))
        negative = F.logsigmoid(-torch.bmm(model["context"](far), w.unsqueeze(2)).squeeze(2)).sum(-1)
        return -(positive + negative).mean()


# ---- loops -------------------------------------------------------------------------------------------------------------------


@family
class Accumulation(SmallNet):
    """Two backward calls for one step of the optimizer."""

    def data(self, rows):
        return super().data(rows) + super().data(rows)

    def step(self, model, optimizer, data, record):
        optimizer.zero_grad()
        total = 0.0
        for x, y in (data[:2], data[2:]):
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            total += loss.item()
        record.gradients(model)
        optimizer.step()
        record.value("loss", total)


@family
class AccumulationOverSteps(SmallNet):
    """`.grad` is full when backward begins, and cleared by zeroing every third step."""

    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        loss.backward()
        record.gradients(model)
        if record.at_step % 3 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        record.value("loss", loss)


@family
class TwoBackwards(SmallNet):
    """Two forwards, two backwards, in order."""

    def step(self, model, optimizer, data, record):
        x, y = data
        optimizer.zero_grad()
        first = F.cross_entropy(model(x), y)
        first.backward()
        second = 0.5 * model(x * 0.5).pow(2).mean()
        second.backward()
        record.gradients(model)
        optimizer.step()
        record.value("first", first)
        record.value("second", second)


@family
class BothForwardsFirst(SmallNet):
    """Two forwards are alive when the first backward begins."""

    def step(self, model, optimizer, data, record):
        x, y = data
        first = F.cross_entropy(model(x), y)
        second = 0.5 * model(x * 0.5).pow(2).mean()
        optimizer.zero_grad()
        first.backward()
        record.gradients(model, "partial")
        second.backward()
        record.gradients(model)
        optimizer.step()
        record.value("first", first)
        record.value("second", second)


@family
class RetainGraph(SmallNet):
    def step(self, model, optimizer, data, record):
        x, y = data
        h = model(x)
        first, second = F.cross_entropy(h, y), h.pow(2).mean()
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        record.gradients(model, "partial")
        second.backward()
        record.gradients(model)
        optimizer.step()
        record.value("first", first)
        record.value("second", second)


@family
class AutogradGrad(SmallNet):
    """torch.autograd.grad and an update by hand."""

    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for i, (p, g) in enumerate(zip(parameters, gradients)):
                record.value(f"gradient/{i}", g)
                p -= 0.1 * g
        record.value("loss", loss)


@family
class BackwardInputs(SmallNet):
    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        optimizer.zero_grad()
        loss.backward(inputs=[model[2].weight, model[4].bias])
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class VectorBackward(SmallNet):
    """backward on something that is no scalar, with a gradient given."""

    held_per_row = 4 * 10 * 8

    def step(self, model, optimizer, data, record):
        x, y = data
        out = model(x)
        optimizer.zero_grad()
        out.backward(gradient=(torch.softmax(x[:, :10], 1) - F.one_hot(y, 10)) / len(x))
        record.gradients(model)
        optimizer.step()
        record.value("out", out)

    symmetric = False


@family
class Gan(Task):
    """Two models, two optimizers; the fake is detached for one of them."""

    budget_rows = 512
    learning_rate = {"sgd": 0.02, "adamw": 1e-3}
    symmetric = False
    held_per_row = 8  # the two targets

    def model(self):
        return nn.ModuleDict({
            "generator": nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 16)),
            "critic": nn.Sequential(nn.Linear(16, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1)),
        })

    def data(self, rows):
        return torch.randn(rows, 16), torch.randn(rows, 8)

    def step(self, model, optimizer, data, record):
        real, noise = data
        generator, critic = model["generator"], model["critic"]
        one, zero = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        fake = generator(noise)
        optimizer.zero_grad()
        judged = F.binary_cross_entropy_with_logits(critic(real), one) + F.binary_cross_entropy_with_logits(critic(fake.detach()), zero)
        judged.backward()
        record.gradients(critic, "critic")
        optimizer.step()

        optimizer.zero_grad()
        fooled = F.binary_cross_entropy_with_logits(critic(fake), one)
        fooled.backward()
        record.gradients(generator, "generator")
        optimizer.step()
        record.value("judged", judged)
        record.value("fooled", fooled)


@family
class ClipGradients(SmallNet):
    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        optimizer.zero_grad()
        loss.backward()
        record.value("norm", torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class Scaler(SmallNet):
    """The scaler multiplies the loss, and looks for infinities in the gradients."""

    def step(self, model, optimizer, data, record):
        if record.at_step == 1:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer.zero_grad()
        loss = self.loss(model, *data)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        record.gradients(model)
        self.scaler.step(optimizer)
        self.scaler.update()
        record.value("loss", loss)
        record.value("scale", self.scaler.get_scale())


@family
class Closure(SmallNet):
    def step(self, model, optimizer, data, record):
        def closure():
            optimizer.zero_grad()
            loss = self.loss(model, *data)
            loss.backward()
            return loss

        record.value("loss", optimizer.step(closure))
        record.gradients(model)


@family
class Schedule(SmallNet):
    def step(self, model, optimizer, data, record):
        if record.at_step == 1:
            self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        super().step(model, optimizer, data, record)
        self.schedule.step()


@family
class MovingAverage(SmallNet):
    """An average of the weights, updated in place after every step."""

    def step(self, model, optimizer, data, record):
        if record.at_step == 1:
            self.average = copy.deepcopy(model)
        super().step(model, optimizer, data, record)
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), model.parameters()):
                slow.lerp_(fast, 0.1)

    def finish(self, model, record):
        for name, p in self.average.named_parameters():
            record.value(f"average/{name}", p)


@family
class MomentumTeacher(SmallNet):
    """The teacher is written in place before the forward of the same step that reads it."""

    def model(self):
        student = super().model()
        return nn.ModuleDict({"student": student, "teacher": copy.deepcopy(student).requires_grad_(False)})

    def loss(self, model, x, y):
        with torch.no_grad():
            for slow, fast in zip(model["teacher"].parameters(), model["student"].parameters()):
                slow.mul_(0.9).add_(fast, alpha=0.1)
            target = model["teacher"](x + 0.1)
        return F.mse_loss(model["student"](x), target) + F.cross_entropy(model["student"](x), y)


@family
class Evaluation(SmallNet):
    """A loop without grad between the steps, with another batch size."""

    def step(self, model, optimizer, data, record):
        super().step(model, optimizer, data, record)
        model.eval()
        with torch.no_grad():
            x, y = data
            correct, total = 0, 0.0
            for a, b in zip(x.split(4), y.split(4)):
                out = model(a)
                correct += (out.argmax(1) == b).sum().item()
                total += F.cross_entropy(out, b, reduction="sum").item()
        record.value("correct", correct)
        record.value("held out", total / len(x))
        with torch.inference_mode():
            record.value("inferred", model(x[:3]).exp().mean())
        model.train()

    symmetric = False


@family
class EvaluationWithPadding(Tokens):
    """In evaluation mode PyTorch's encoder lays rows of different lengths into a nested tensor, which has no sizes."""

    symmetric = False  # a row's length is its place's

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(40, 16)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 2)
            self.head = nn.Linear(16, 10)

        def forward(self, tokens, lengths):
            padding = torch.arange(tokens.size(1)) >= lengths[:, None]
            return self.head(self.encoder(self.token(tokens), src_key_padding_mask=padding)[:, 0])

    def model(self):
        return self.Net()

    def step(self, model, optimizer, data, record):
        x, y = data
        lengths = 1 + torch.arange(len(x)) % (self.length - 1)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, lengths), y)
        loss.backward()
        record.gradients(model)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            record.value("evaluation", model(x[:3], lengths[:3]))
        record.value("evaluation loss", F.cross_entropy(model(x[:3], lengths[:3]), y[:3]))
        model.train()
        record.value("loss", loss)


@family
class Accuracy(SmallNet):
    """Counts from the outputs after backward and after the step."""

    held_per_row = 10 * 4 + 3 * (4 + 8 + 1)

    def step(self, model, optimizer, data, record):
        x, y = data
        output = model(x)
        loss = F.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        best = output.data.max(1)[1]
        record.value("correct", best.eq(y).sum())
        optimizer.step()
        record.value("loss", loss)
        record.value("accuracy", (output.argmax(dim=1) == y).to(x.dtype).mean())
        record.value("top", output.topk(3, dim=1).indices.eq(y[:, None]).any(1).sum())


@family
class ChangingBatch(SmallNet):
    """The last batch of an epoch is smaller."""

    def step(self, model, optimizer, data, record):
        if record.at_step in (2, 5):
            data = tuple(t[:len(t) // 2 + 1] for t in data)
        super().step(model, optimizer, data, record)

    symmetric = False


@family
class Dataloader(SmallNet):
    held_per_row = 2 * (24 * 4 + 8)

    def step(self, model, optimizer, data, record):
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=len(data[0]) - 2, shuffle=True)
        for i, (x, y) in enumerate(loader):
            loss = self.loss(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            record.gradients(model, f"gradient{i}")
            optimizer.step()
            record.value(f"loss{i}", loss)

    symmetric = False


# ---- found by scripts that nobody here wrote ---------------------------------------------------------------------------------


@family
class MaskWrittenThroughView(SmallNet):
    """A constant of the batch's size, written to through a view, gathered from, and let go of."""

    held_per_row = 3 * 16 * 4  # the mask, before and after, and its product with the losses

    def loss(self, model, x, y):
        mask = torch.ones(x.size(0), 16, dtype=x.dtype)
        mask[:, :3] = 0
        mask = torch.gather(mask, 1, torch.arange(16).flip(0).expand(x.size(0), 16))
        each = F.cross_entropy(model(x), y, reduction="none")
        return (each[:, None] * mask).sum() / mask.sum()


@family
class ActivationsAssignedUnderAMask(SmallNet):
    """x[x < 0] = 0.1, and a learned vector for rows that a mask names."""

    def model(self):
        model = nn.Sequential(nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, 10))
        model.register_parameter("token", nn.Parameter(torch.randn(32) * 0.1))
        return model

    def loss(self, model, x, y):
        h = model[0](x)
        h[h < -0.3] = -0.3
        h[x[:, 0] > 1] = model.token
        h = model[1](h)
        h[:, :2][h[:, :2] > 0.5] = 0.5
        return F.cross_entropy(model[2](torch.tanh(h)), y)


def two_layers(width=32):
    return nn.ModuleList([nn.Linear(24, width), nn.Sequential(nn.Linear(width, width), nn.Tanh()), nn.Linear(width, 10)])


@family
class HandedOverByHand(SmallNet):
    """A pipeline by hand: the second half works on a detached copy, whose gradient the first half is given."""

    def model(self):
        return two_layers()

    def step(self, model, optimizer, data, record):
        x, y = data
        optimizer.zero_grad()
        h = model[1](torch.tanh(model[0](x)))
        leaf = h.detach().requires_grad_()
        loss = F.cross_entropy(model[2](leaf), y)
        loss.backward()
        h.backward(leaf.grad)
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)

    splits = False


@family
class CheckpointsOfBothKinds(SmallNet):
    splits = False

    def model(self):
        return two_layers()

    def loss(self, model, x, y):
        h = torch.utils.checkpoint.checkpoint(model[1], model[0](x), use_reentrant=False)
        return F.cross_entropy(model[2](torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=True)), y)


class Quantised(SmallNet):
    """Activations are kept in eight bits, so that gradients are other ones: hooks of the program's own are part of its meaning."""

    splits = False

    def quantised(self):
        def pack(t):
            scale = t.detach().abs().max() / 127 if t.is_floating_point() else None
            return t if scale is None else ((t.detach() / scale).round().to(torch.int8), scale)

        def unpack(kept):
            return kept if isinstance(kept, torch.Tensor) else kept[0] * kept[1]

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


@family
class QuantisedActivations(Quantised):
    # A difference in rounding may end in another of the 256 steps.
    tolerance = 2e-2

    def loss(self, model, x, y):
        with self.quantised():
            return F.cross_entropy(model(x), y)


@family
class QuantisedInTheMiddle(Quantised):
    tolerance = 2e-2

    def loss(self, model, x, y):
        x = model[1](model[0](x))
        with self.quantised():
            x = model[2](x)
            x = model[3](x)
        return F.cross_entropy(model[4](x), y)


@family
class HalvedOnTheWay(SmallNet):
    """Unpacks half of what was packed, in one place: exactly."""

    splits = False

    def loss(self, model, x, y):
        x = model[0](x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 0.5):
            x = torch.tanh(x)
        return F.cross_entropy(model[4](model[3](model[2](x))), y)


@family
class FirstLayerDecayed(SmallNet):
    """A weight that backward does not need is written to before it."""

    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        with torch.no_grad():
            model[0].weight.mul_(0.9)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


class GhostNorm(nn.Module):
    """Batch norm over a few rows at a time: its statistics move several times in a step."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        return torch.cat([self.norm(part) for part in x.chunk(4)])


@family
class GhostBatchNorm(SmallNet):
    splits = False
    symmetric = False

    def model(self):
        return nn.Sequential(GhostNorm(24), nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))


class Moving(SmallNet):
    """The batch comes from the host, as a data loader's does, and figures go back to it. On the CPU nothing moves."""

    def data(self, rows):
        return tuple(t.cpu() for t in super().data(rows))


@family
class MovedBatch(Moving):
    def step(self, model, optimizer, data, record):
        x, y = (t.to(next(model.parameters()).device, non_blocking=True) for t in data)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        right = logits.argmax(1).cpu() == data[1]
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)
        record.value("accuracy", right.float().mean())


@family
class MovedOnTheWay(Moving):
    """A layer of the host's between two of the device's, rows picked by an index on the host, and a penalty on the host."""

    splits = False
    symmetric = False

    def loss(self, model, x, y):
        device = next(model.parameters()).device
        hidden = torch.tanh(model[0](x.to(device))).cpu()
        even = torch.arange(len(x), device="cpu") % 2 == 0
        out = model[4](model[3](model[2]((hidden * x.mean(1, keepdim=True)).to(device))))
        return F.cross_entropy(out, y.type_as(out).long()) + out[even].pow(2).mean() + hidden.pow(2).mean().to(device)


@family
class EarlyExit(SmallNet):
    """Rows leave at the layer that is sure of them, into one small tensor made before: its graph grows by writes alone."""

    splits = False

    def model(self):
        layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])
        return nn.ModuleDict({"layers": layers, "heads": nn.ModuleList([nn.Linear(24, 10) for _ in layers])})

    def loss(self, model, x, y):
        rows, logits = torch.arange(len(x)), torch.zeros(len(x), 10)
        for layer, head in zip(model["layers"], model["heads"]):
            x = torch.tanh(layer(x))
            out = head(x)
            sure = out.softmax(1).amax(1) > 0.15
            logits[rows[sure]] = out[sure]
            x, rows = x[~sure], rows[~sure]
        logits[rows] = out[~sure]
        return F.cross_entropy(logits, y)


@family
class GanWithBatchNorm(SmallNet):
    """The discriminator's loss must leave the generator's graph, and hooks on its parameters, alone."""

    tolerance = 3e-5  # plain PyTorch with its rows in another order is off by 1.8e-5

    def model(self):
        model = nn.ModuleList([nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 24)),
                               nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 1))])
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * 1.0)
        return model

    def step(self, model, optimizer, data, record):
        generator, discriminator = model
        fake = generator(data[0])
        optimizer.zero_grad()
        loss = F.softplus(discriminator(fake.detach())).mean()
        loss.backward()
        record.gradients(model, "first")
        other = F.softplus(-discriminator(fake)).mean()
        other.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)
        record.value("other", other)


@family
class CutMix(Images):
    splits = False

    def model(self):
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 144, 10))

    def loss(self, model, x, y):
        order = torch.randperm(len(x))
        x = x.clone()
        x[:, :, 1:5, 2:6] = x[order, :, 1:5, 2:6]
        out = model(x)
        return 0.3 * F.cross_entropy(out, y) + 0.7 * F.cross_entropy(out, y[order])

    symmetric = False


@family
class GradientsInOneBuffer(SmallNet):
    """Every gradient a view of one buffer: they share a version."""

    splits = False

    def step(self, model, optimizer, data, record):
        parameters = list(model.parameters())
        if parameters[0].grad is None:
            self.buffer = torch.zeros(sum(p.numel() for p in parameters))
            at = 0
            for p in parameters:
                p.grad = self.buffer[at:at + p.numel()].view_as(p)
                at += p.numel()
        self.buffer.zero_()
        loss = self.loss(model, *data)
        loss.backward()
        record.value("buffer", self.buffer)
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class MeanTeacher(SmallNet):
    """Targets from random draws that nothing holds; a part of the loss that could be split alone, when backward has begun."""

    splits = False

    def model(self):
        model = two_layers()
        model[2].requires_grad_()
        return model

    def net(self, model, x):
        return model[2](model[1](torch.tanh(model[0](x))))

    def loss(self, model, x, y):
        with torch.no_grad():
            soft = self.net(model, x + 0.1 * torch.randn_like(x)).softmax(-1)
            hard = self.net(model, x)
        out = self.net(model, x)
        return F.cross_entropy(out, y) + F.mse_loss(out, hard + 1) + F.kl_div(out.log_softmax(-1), soft, reduction="batchmean")

    symmetric = False


@family
class WeightWrittenThroughData(SmallNet):
    """Between forward and backward, where no version shows it."""

    splits = False

    def model(self):
        return two_layers()

    def step(self, model, optimizer, data, record):
        x, y = data
        optimizer.zero_grad()
        loss = F.cross_entropy(model[2](model[1](model[0](x))), y)
        model[2].weight.data.mul_(0.99)
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class RoutingByAgreement(SmallNet):
    """A mean over the batch is looked at in full, and then added to a mean over the batch."""

    def model(self):
        return nn.ModuleList([nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, 10)])

    def loss(self, model, x, y):
        h = torch.tanh(model[1](torch.tanh(model[0](x))))
        agreement = torch.zeros(1, 32)
        for _ in range(3):
            v = h * agreement.softmax(1)
            agreement = agreement + (h.detach() * v.detach()).mean(0, keepdim=True)
        return F.cross_entropy(model[2](h * agreement.softmax(1)), y)


class TwoBatchSizes(SmallNet):
    def data(self, rows):
        x, y = super().data(rows)
        return x, y, torch.randn(rows + rows // 2, 24)

    symmetric = False


@family
class NetworksOnTwoBatches(TwoBatchSizes):
    """Whichever runs out, the other may have to be split too, by rows of its own."""

    def model(self):
        return nn.ModuleList(nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10)) for _ in range(2))

    def loss(self, model, x, y, other):
        return F.cross_entropy(model[0](x), y) + model[1](other).square().mean()


@family
class TargetNetworkOnAnotherBatch(TwoBatchSizes):
    """Q-learning: the target network runs under no_grad, on the rows that have a next state."""

    def model(self):
        return nn.ModuleList(nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10)) for _ in range(2))

    def loss(self, model, x, y, other):
        value = model[0](x).gather(1, y[:, None])
        with torch.no_grad():
            best = model[1](other).max(1).values[:len(x)]
        return F.smooth_l1_loss(value, (1 + 0.9 * best)[:, None])


@family
class OutputsFilledInALoop(Task):
    """Decoder steps written one by one into a tensor of zeros."""

    rows = 13  # so that the zeros are worth making in parts
    budget_rows = 128
    held_per_row = 8 * 10 * 4  # the zeros, where the step begins with them

    def model(self):
        return nn.ModuleDict({"encode": nn.GRUCell(12, 20), "decode": nn.GRUCell(10, 20), "head": nn.Linear(20, 10)})

    def data(self, rows):
        return torch.randn(rows, 6, 12), torch.randint(10, (rows, 8))

    def loss(self, model, x, y):
        outputs = torch.zeros(x.size(0), 8, 10, dtype=x.dtype)
        state = torch.zeros(x.size(0), 20, dtype=x.dtype)
        for t in range(x.size(1)):
            state = model["encode"](x[:, t], state)
        token = torch.zeros(x.size(0), 10, dtype=x.dtype)
        for t in range(8):
            state = model["decode"](token, state)
            outputs[:, t] = model["head"](state)
            token = F.one_hot(y[:, t], 10).to(x.dtype)
        return F.cross_entropy(outputs.view(-1, 10), y.view(-1))


@family
class ShiftedLabels(LanguageModel):
    """The usual loss of a language model: of one row a slice is contiguous already, of a batch it is not."""

    def model(self):
        return nn.Sequential(nn.Embedding(self.vocabulary, 16), nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, self.vocabulary))

    def loss(self, model, tokens, *_):
        logits = model(tokens)[..., :-1, :].contiguous()
        labels = tokens[..., 1:].contiguous()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))


@family
class PolicyGradient(SmallNet):
    """torch.distributions, whose checks read values."""

    def loss(self, model, x, y):
        policy = torch.distributions.Categorical(logits=model(x))
        return -(policy.log_prob(y) * x[:, 0]).mean() - 0.01 * policy.entropy().mean()


@family
class CheckpointWithBatchNorm(SmallNet):
    """Plain PyTorch runs a checkpoint's part again in backward, and moves the running statistics once more."""

    splits = False

    def model(self):
        return nn.ModuleList([nn.Linear(24, 32), nn.Sequential(nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 10))])

    def loss(self, model, x, y):
        return F.cross_entropy(torch.utils.checkpoint.checkpoint(model[1], model[0](x), use_reentrant=False), y)


@family
class NoiseAddedToInput(SmallNet):
    """Noise is drawn for the batch, and is the same in micro-batches."""

    symmetric = False
    held_per_row = 2 * 24 * 4

    def loss(self, model, x, y):
        return F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)


@family
class SharedGraphOutside(SmallNet):
    """One value feeds a part that cannot be split (rows written by index) and one that can: both need its graph."""

    splits = False

    def loss(self, model, x, y):
        p = model(x).exp()
        q = p.clone()
        q[torch.where(x[:, 0] > 1)[0]] = 0
        return 0.01 * q.pow(2).mean() + (torch.rand(10, dtype=x.dtype) * p.mean(0)).mean()


@family
class BroadcastOfInputAndOutput(SmallNet):
    """One call gives views of an input and of what the model made."""

    def loss(self, model, x, y):
        labels, logits = torch.broadcast_tensors(y[:, None], model(x))
        return -F.log_softmax(logits, -1).gather(-1, labels[..., :1]).mean()
