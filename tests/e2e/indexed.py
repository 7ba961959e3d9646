"""Steps in which an index decides which rows meet: graphs whose edges add to their nodes, mixtures of experts that pick tokens, pairs; and a teacher's targets, whose noise is gone."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

from task import Task, family


class Graph(Task):
    """Rows are edges; there are far fewer nodes."""

    rows = 23
    budget_rows = 1200
    symmetric = False

    def model(self):
        return nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)])

    def data(self, rows):
        nodes = rows // 30 + 5
        source, target = torch.randint(nodes, (rows,)), torch.randint(nodes, (rows,))
        self.nodes = torch.randn(nodes, 8), torch.randint(4, (nodes,))
        return source, target, torch.randn(rows, 16)

    def together(self, messages, target, nodes):
        raise NotImplementedError

    def loss(self, model, source, target, weight):
        h, y = self.nodes
        for layer in model[:2]:
            messages = torch.tanh(layer(h)[source] * weight)
            h = F.silu(self.together(messages, target, len(y)))
        return F.cross_entropy(model[2](h), y)


@family
class EdgesAddedInPlace(Graph):
    def together(self, messages, target, nodes):
        return torch.zeros(nodes, messages.shape[1], dtype=messages.dtype).index_add_(0, target, messages)


@family
class EdgesAddedToNewZeros(Graph):
    def together(self, messages, target, nodes):
        out = messages.new_zeros(nodes, messages.shape[1])
        return out.scatter_add_(0, target[:, None].expand_as(messages), messages)


@family
class EdgesAdded(Graph):
    def together(self, messages, target, nodes):
        return torch.index_add(torch.ones(nodes, messages.shape[1], dtype=messages.dtype), 0, target, messages, alpha=0.5)


@family
class EdgesPut(Graph):
    def together(self, messages, target, nodes):
        return torch.zeros_like(self.nodes[0][:, :1]).repeat(1, messages.shape[1]).index_put((target,), messages, accumulate=True)


@family
class EdgesAveraged(Graph):
    def together(self, messages, target, nodes):
        count = torch.zeros(nodes, dtype=messages.dtype).index_add_(0, target, torch.ones(len(target), dtype=messages.dtype))
        total = torch.zeros(nodes, messages.shape[1], dtype=messages.dtype).index_add_(0, target, messages)
        return total / count.clamp(min=1)[:, None]


@family
class EdgesAttend(Graph):
    """A softmax over each node's edges."""

    def together(self, messages, target, nodes):
        score = messages.sum(1).exp()
        total = torch.zeros(nodes, dtype=messages.dtype).index_add(0, target, score)
        return torch.zeros(nodes, messages.shape[1], dtype=messages.dtype).index_add(0, target, messages * (score / total[target])[:, None])


class Mixture(Task):
    """Rows are tokens. Each goes to two of four experts."""

    rows = 13
    budget_rows = 500

    def model(self):
        return nn.ModuleList([nn.Linear(8, 12), nn.Linear(12, 4), nn.ModuleList(nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)) for _ in range(4)), nn.Linear(12, 5)])

    def data(self, rows):
        return torch.randn(rows, 8), torch.randint(5, (rows,))

    def route(self, experts, h, weights, chosen):
        raise NotImplementedError

    def loss(self, model, x, y):
        h = torch.tanh(model[0](x))
        p = model[1](h).softmax(-1)
        weights, chosen = p.topk(2, -1)
        return F.cross_entropy(model[3](h + self.route(model[2], h, weights / weights.sum(-1, keepdim=True), chosen)), y) + 0.1 * p.mean(0).square().sum()


@family
class ExpertsByWhere(Mixture):
    def route(self, experts, h, weights, chosen):
        out = torch.zeros_like(h)
        for k, expert in enumerate(experts):
            row, column = torch.where(chosen == k)
            if len(row):
                out.index_add_(0, row, expert(h[row]) * weights[row, column, None])
        return out


@family
class ExpertsAsMixtral(Mixture):
    """Tokens come in the order of the experts' choices, and so not in their own."""

    def route(self, experts, h, weights, chosen):
        out = torch.zeros(h.shape, dtype=h.dtype)
        mask = F.one_hot(chosen, len(experts)).permute(2, 1, 0)
        for k, expert in enumerate(experts):
            column, row = torch.where(mask[k])
            picked = expert(h[None, row].reshape(-1, h.shape[1])) * weights[row, column, None]
            out.index_add_(0, row, picked.to(h.dtype))
        return out


@family
class ExpertsByMask(Mixture):
    def route(self, experts, h, weights, chosen):
        out = torch.zeros_like(h)
        for k, expert in enumerate(experts):
            mask = (chosen == k).any(-1)
            out[mask] += expert(h[mask]) * (weights * (chosen == k)).sum(-1)[mask][:, None]
        return out


@family
class ExpertsScattered(Mixture):
    def route(self, experts, h, weights, chosen):
        out = torch.zeros_like(h)
        for k, expert in enumerate(experts):
            row = (chosen == k).any(-1).nonzero()[:, 0]
            out = out.scatter_add(0, row[:, None].expand(-1, h.shape[1]), expert(h.index_select(0, row)))
        return out


@family
class PairsDrawn(Task):
    symmetric = False
    rows = 13
    budget_rows = 400

    def model(self):
        return nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 6))

    def data(self, rows):
        self.pairs = torch.randint(rows, (rows // 2,)), torch.randint(rows, (rows // 2,))
        return torch.randn(rows, 10), torch.rand(rows // 2)

    def loss(self, model, x, y):
        z = model(x)
        i, j = self.pairs
        return F.mse_loss((z[i] - z[j]).square().sum(-1), y)


@family
class NoisyTeacher(Task):
    """Two batches of different sizes, batch norm, and a teacher whose noise nobody keeps."""

    rows = 9
    budget_rows = 40

    def model(self):
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))

    def data(self, rows):
        return torch.randn(rows // 2 + 1, 3, 12, 12), torch.randint(5, (rows // 2 + 1,)), torch.randn(rows, 3, 12, 12)

    def loss(self, model, labelled, y, unlabelled):
        if not hasattr(self, "teacher"):
            self.teacher = copy.deepcopy(model).requires_grad_(False)
        with torch.no_grad():
            target = self.teacher(unlabelled + 0.1 * torch.randn_like(unlabelled)).softmax(-1)
        return F.cross_entropy(model(labelled), y) + F.mse_loss(model(unlabelled).softmax(-1), target)
