"""Loops that are hard on whoever chooses the size of micro-batches; small."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from models import Cnn, Gpt, Mlp
from task import family


class Steady:
    symmetric = False


@family
class SteadyMlp(Steady, Mlp):
    pass


@family
class SteadyCnn(Steady, Cnn):
    pass


@family
class SteadyGpt(Steady, Gpt):
    pass


@family
class HoldsATensor(SteadyMlp):
    """Another part of the program takes much of the memory for a while."""

    per_row = 45  # values

    def step(self, model, optimizer, data, record):
        if record.at_step == 5:
            self.held = data[0].new_ones(len(data[0]), self.per_row)
        if record.at_step == 9:
            self.held = None
        super().step(model, optimizer, data, record)


class Retried:
    """A program that tries a batch again when memory ran out, as many do: which is exact if the step that failed has left nothing behind."""

    def step(self, model, optimizer, data, record):
        for _ in range(100):
            try:
                loss = self.loss(model, *data)
                optimizer.zero_grad()
                loss.backward()
                break
            except torch.OutOfMemoryError:
                optimizer.zero_grad()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class RetriedMlp(Retried, SteadyMlp):
    pass


@family
class RetriedGpt(Retried, SteadyGpt):
    pass


def network():
    return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))


class Networks(SteadyMlp):
    def model(self):
        return nn.ModuleList([network(), network()])

    def data(self, rows):
        x, y = super().data(rows)
        return x, y, torch.randn(rows + rows // 2, self.width)


@family
class Alternating(Networks):
    """A step of one network, and one of the other with more rows; each has a gradient of its own."""

    def step(self, model, optimizer, data, record):
        x, y, other = data
        loss = F.cross_entropy(model[0](x), y) if record.at_step % 2 else model[1](other).square().mean()
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class Mixed(Networks):
    """Both in one step, every fourth batch smaller, and after each step an evaluation of the whole batch without gradients."""

    def step(self, model, optimizer, data, record):
        if record.at_step % 4 == 0:
            data = tuple(t[:len(t) * 2 // 3] for t in data)
        super().step(model, optimizer, data, record)
        model.eval()
        with torch.no_grad():
            x, y, _ = data
            record.value("held out", F.cross_entropy(model[0](x), y))
        model.train()

    def loss(self, model, x, y, other):
        return F.cross_entropy(model[0](x), y) + model[1](other).square().mean()
