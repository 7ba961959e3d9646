"""Steps whose tensors are read, written into and kept in ways that a rescue has to survive: whatever was handed to the program keeps the way to its value."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from task import Task, family


class HandedOut(Task):
    wraps_errors = False
    budget_rows = 64
    splits = False  # exact or untouched is all that is asked for
    symmetric = False


def norm_block(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


@family
class SiameseNorm(HandedOut):
    """A net with batch norm and in-place ReLU, run twice in one step; as many channels as rows, so that sizes mislead."""
    budget_rows = rows = 16

    def model(self):
        return nn.Sequential(*norm_block(1, 16), *norm_block(16, 32), nn.MaxPool2d(4), *norm_block(32, 32), *norm_block(32, 16))

    def data(self, rows):
        return torch.randn(rows, 1, 8, 8), torch.randn(rows, 1, 8, 8)

    def loss(self, model, a, b):
        return (model(a) * model(b)).mean()


class Graph(HandedOut):
    """Nodes are rows, edges join any of them."""

    def model(self):
        return nn.ModuleDict({"inner": nn.Linear(8, 32), "score": nn.Linear(64, 1), "outer": nn.Linear(32, 3)})

    def data(self, rows):
        return torch.randn(rows, 8), torch.randint(rows, (4 * rows,)), torch.randint(rows, (4 * rows,)), torch.randint(3, (rows,))

    def permuted(self, data, order):
        return data


@family
class MessagePassing(Graph):
    def loss(self, model, x, source, target, y):
        h = model["inner"](x)
        received = h.new_zeros(len(x), 32).scatter_add_(0, target[:, None].expand(-1, 32), h[source])
        return F.cross_entropy(model["outer"](torch.tanh(received)), y)


@family
class MessagesOfMostValue(Graph):
    def loss(self, model, x, source, target, y):
        h = model["inner"](x)
        received = h.new_zeros(len(x), 32).scatter_reduce_(0, target[:, None].expand(-1, 32), h[source], "amax", include_self=False)
        return F.cross_entropy(model["outer"](torch.tanh(received) + h), y)


@family
class MessagesIntoFewNodes(Graph):
    def loss(self, model, x, source, target, y):
        h = model["inner"](x)
        received = h.new_zeros(4, 32)
        received.index_add_(0, target % 4, h[source])
        return model["outer"](torch.tanh(received)).pow(2).mean() + F.cross_entropy(model["outer"](h), y)


@family
class GraphAttention(Graph):
    """Asks on the way whether its weights sum to one."""

    def loss(self, model, x, source, target, y):
        h = model["inner"](x)
        score = F.leaky_relu(model["score"](torch.cat([h[source], h[target]], dim=-1))).squeeze(-1)
        largest = score.new_full((len(x),), float("-inf")).scatter_reduce_(0, target, score, "amax")
        weight = (score - largest[target]).exp()
        weight = weight / weight.new_zeros(len(x)).scatter_add_(0, target, weight)[target]
        total = weight.new_zeros(len(x)).scatter_add_(0, target, weight)
        assert torch.allclose(total[target], torch.ones((), dtype=total.dtype))
        received = h.new_zeros(len(x), 32).index_add_(0, target, weight[:, None] * h[source])
        return F.cross_entropy(model["outer"](received.relu()), y)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 64)
        self.b = nn.Linear(64, 64)
        self.c = nn.Linear(64, 4)

    def forward(self, x):
        h = torch.relu(self.a(x))
        doubled = torch.concat([h, h * 2], dim=1)
        h = torch.tanh(self.b(h)) + doubled[:, :64]
        if bool(h.sum() > 1e9):
            h = h * 2
        return self.c(h)


@family
class ScriptedNet(HandedOut):
    budget_rows = 128
    wraps_errors = True

    def model(self):
        return torch.jit.script(Scripted())

    def data(self, rows):
        return torch.randn(rows, 16), torch.randint(4, (rows,))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


@family
class TracedNet(ScriptedNet):
    def model(self):
        net = Scripted()
        return torch.jit.trace(net, torch.randn(4, 16, dtype=next(net.parameters()).dtype))


@family
class HistogramLoss(HandedOut):
    """Pairs are picked by a mask of a mask."""

    def model(self):
        return nn.Linear(8, 64)

    def data(self, rows):
        return torch.randn(rows, 8), torch.randint(8, (rows,))

    def loss(self, model, x, label):
        f = F.normalize(model(x))
        similar = f @ f.T
        same = label[:, None] == label[None]
        upper = torch.ones_like(same).triu(1)
        of_same, value = same[upper], similar[upper]
        bins = torch.linspace(-1, 1, 21, dtype=x.dtype)

        def histogram(values):
            return torch.relu(1 - (values[:, None] - bins).abs() / 0.1).mean(0)

        return (histogram(value[~of_same]) * histogram(value[of_same]).cumsum(0)).sum()


class Deep(HandedOut):
    budget_rows = 128

    def model(self):
        return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    def data(self, rows):
        return torch.randn(rows, 16), torch.randint(4, (rows,))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


@family
class Compared(Deep):
    """Values of the step are compared on the way, and what they say is recorded."""

    def step(self, model, optimizer, data, record):
        x, y = data
        h = model[1](model[0](x))
        g = model[3](model[2](h))
        record.value("close", int(torch.allclose(h, g)) + 2 * int(torch.equal(h, h)) + 4 * int(torch.isnan(g).any()))
        out = model[4](g)
        record.value("right", int((out.argmax(1) == y).sum()))
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class KeptWithoutItsGraph(Deep):
    """Keeps a detached copy of hidden values, lets the graph go without a backward pass, and reads the copy after the update."""

    def step(self, model, optimizer, data, record):
        x, y = data
        hidden = model[:2](x)
        kept = hidden.detach().clone() * 2
        lost = model[2:](hidden).sum()
        del hidden, lost
        super().step(model, optimizer, data, record)
        record.value("kept", kept)


@family
class KeptThroughAFailure(Deep):
    """Goes on after a step that ran out, as loops do that catch the error, and reads what that step has left."""

    def step(self, model, optimizer, data, record):
        x, y = data
        kept = []
        try:
            hidden = model[:2](x)
            kept.append(hidden.detach().clone())
            loss = F.cross_entropy(model[2:](hidden), y)
            kept.append(loss.detach())
            loss.backward()
        except torch.OutOfMemoryError:
            pass
        optimizer.zero_grad()
        if kept:
            with torch.no_grad():
                assert torch.allclose(kept[0], model[:2](x))
        super().step(model, optimizer, data, record)


@family
class ReadAndThenTrained(Deep):
    """The batch is read without gradients first, and has a gradient of its own afterwards."""

    def step(self, model, optimizer, data, record):
        x, y = data
        with torch.no_grad():
            target = torch.tanh(model[0](x))
        x.requires_grad_()
        hidden = model[1](model[0](x))
        loss = F.cross_entropy(model[2:](hidden), y) + (hidden - target).pow(2).mean() + x.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        record.value("input", x.grad)
        optimizer.step()
        record.value("loss", loss)
