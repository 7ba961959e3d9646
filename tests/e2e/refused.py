"""Steps that cannot be split: koila hands on the plain error, and the state that goes with it."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from models import Vectors
from task import Task, family


class Refused(Vectors):
    splits = False

    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))


@family
class AddsToAView(Refused):
    """GhostNet's block: a shortcut, behind a batch norm, is added in place to a view of what was concatenated."""

    def model(self):
        def layer(inputs, outputs):
            return nn.Sequential(nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs))

        return nn.ModuleDict({"stem": layer(24, 32), "first": layer(32, 16), "second": layer(16, 16), "shortcut": layer(32, 32), "out": nn.Linear(32, 10)})

    def loss(self, model, x, y):
        x = torch.tanh(model["stem"](x))
        half = torch.tanh(model["first"](x))
        both = torch.cat([half, torch.tanh(model["second"](half))], dim=1)[:, :32]
        both += model["shortcut"](x)
        return F.cross_entropy(model["out"](torch.tanh(both)), y)


@family
class CreateGraph(Refused):
    """A gradient penalty: the gradient is itself differentiated."""

    def step(self, model, optimizer, data, record):
        x, y = data
        x = x.clone().requires_grad_(True)
        loss = F.cross_entropy(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        total = loss + slope.pow(2).sum()
        optimizer.zero_grad()
        total.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", total)


@family
class InnerHook(Refused):
    """A hook on an inner tensor sees, and changes, the gradient of the whole batch."""

    def step(self, model, optimizer, data, record):
        x, y = data
        hidden = model[1](model[0](x))
        seen = []
        hidden.register_hook(lambda gradient: seen.append(gradient.norm().item()) or gradient / (1 + gradient.norm()))
        loss = F.cross_entropy(model[4](model[3](model[2](hidden))), y)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        record.value("seen", seen)
        optimizer.step()
        record.value("loss", loss)


@family
class NodeHook(Refused):
    """A hook on a node of the graph, for which a split step has no other."""

    def step(self, model, optimizer, data, record):
        x, y = data
        hidden = model[1](model[0](x))
        hidden.grad_fn.register_prehook(lambda gradients: (gradients[0] / (1 + gradients[0].norm()),))
        loss = F.cross_entropy(model[4](model[3](model[2](hidden))), y)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class InnerRetainGrad(Refused):
    symmetric = False

    def step(self, model, optimizer, data, record):
        x, y = data
        hidden = model[1](model[0](x))
        hidden.retain_grad()
        loss = F.cross_entropy(model[4](model[3](model[2](hidden))), y)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        record.value("hidden", hidden.grad)
        optimizer.step()
        record.value("loss", loss)


@family
class NoBatch(Task):
    """A chain of matrix products on one square matrix: every dimension is summed over before the end. The gains are small: a chain
    that amplifies rounding would say nothing about whoever runs it."""

    rows = 24
    budget_rows = 160
    splits = False
    symmetric = False

    def model(self):
        return nn.ParameterList([torch.randn(1)])

    def data(self, rows):
        return (torch.randn(rows, rows) / rows ** 0.5,)

    def loss(self, model, x):
        for _ in range(6):
            x = x + 0.5 * torch.tanh(torch.softmax(x @ x.T * model[0] / len(x), 0) @ x @ x.T)
            x = x / x.std()
        return (x @ x).pow(2).mean()


@family
class RowTooBig(Task):
    """One row alone does not fit."""

    rows = budget_rows = 2
    splits = False

    def model(self):
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))

    def data(self, rows):
        return torch.randn(rows, 6000, 8), torch.randint(4, (rows, 6000))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x).view(-1, 4), y.view(-1))


@family
class SavedTensorHooks(Refused):
    def loss(self, model, x, y):
        with torch.autograd.graph.save_on_cpu():
            hidden = model(x)
        return F.cross_entropy(hidden, y)


@family
class FunctionalGradient(Refused):
    """torch.func: koila stays out."""

    def step(self, model, optimizer, data, record):
        x, y = data
        names = [name for name, _ in model.named_parameters()]
        parameters = dict(model.named_parameters())

        def objective(parameters):
            return F.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

        gradients = torch.func.grad(objective)({name: parameters[name].detach() for name in names})
        optimizer.zero_grad()
        for name in names:
            parameters[name].grad = gradients[name]
        record.gradients(model)
        optimizer.step()


@family
class Threads(Refused):
    """The forward runs in another thread than the optimizer."""

    def step(self, model, optimizer, data, record):
        import threading

        result = []

        def work():
            try:
                optimizer.zero_grad()
                loss = self.loss(model, *data)
                loss.backward()
                result.append(loss.detach())
            except Exception as error:
                result.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(result[0], Exception):
            raise result[0]
        record.gradients(model)
        optimizer.step()
        record.value("loss", result[0])


@family
class CatchesItself(Refused):
    """The program knows what to do about an out-of-memory: half the batch."""

    def step(self, model, optimizer, data, record):
        caught = 0
        while True:
            try:
                optimizer.zero_grad()
                loss = self.loss(model, *data)
                loss.backward()
                break
            except torch.OutOfMemoryError:
                caught += 1
            loss = None
            data = tuple(t[:len(t) // 2] for t in data)
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)
        record.value("caught", caught)

    symmetric = False


@family
class CatchesAndGivesUp(Refused):
    """The program skips batches that do not fit, and others do."""

    def step(self, model, optimizer, data, record):
        if record.at_step % 2 == 0:
            data = tuple(t[:20] for t in data)
        try:
            optimizer.zero_grad()
            loss = self.loss(model, *data)
            loss.backward()
            record.gradients(model)
            optimizer.step()
            record.value("loss", loss)
        except torch.OutOfMemoryError:
            record.value("skipped", 1)

    symmetric = False
