"""Small training programs whose steps are mostly autograd.Functions that rules name (functions.rules), each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

    koila run --ladder 0,1 --rules tests/e2e/functions.rules -- python tests/e2e/functions_with_rules.py NAME...
"""

import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function

from shared_functions import Nearest
from under_budgets import Programs, main, train

PROGRAMS = program = Programs()


class Linear(Function):
    """That of PyTorch's own tutorial."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        out = x.mm(weight.t())
        return out if bias is None else out + bias.unsqueeze(0).expand_as(out)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias = ctx.saved_tensors
        of_x = gradient.mm(weight) if ctx.needs_input_grad[0] else None
        return of_x, gradient.t().mm(x), gradient.sum(0) if bias is not None and ctx.needs_input_grad[2] else None


@dataclasses.dataclass
class Settings:
    eps: float


class Normed(Function):
    """With settings in an object, and the newer form of a Function."""

    @staticmethod
    def forward(x, weight, settings):
        return x * (x.pow(2).mean(-1, keepdim=True) + settings.eps).rsqrt() * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, settings = inputs
        ctx.save_for_backward(x, weight)
        ctx.eps = settings.eps

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        scale = (x.pow(2).mean(-1, keepdim=True) + ctx.eps).rsqrt()
        normed = x * scale
        of_normed = gradient * weight
        of_x = (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True)) * scale
        return of_x, (gradient * normed).flatten(0, -2).sum(0), None


class TokensLoss(Function):
    """The head and its cross entropy at once, whose gradients are made in forward."""

    @staticmethod
    def forward(ctx, hidden, head, target):
        logits = hidden @ head.t()
        loss = F.cross_entropy(logits, target, reduction="sum")
        of_logits = logits.softmax(-1)
        of_logits[torch.arange(len(target)), target] -= 1
        ctx.save_for_backward(of_logits @ head, of_logits.t() @ hidden)
        return loss

    @staticmethod
    def backward(ctx, gradient):
        of_hidden, of_head = ctx.saved_tensors
        return gradient * of_hidden, gradient * of_head, None


class Folded(Function):
    @staticmethod
    def forward(ctx, x, rows):
        ctx.sizes = x.shape
        return x.reshape(rows, -1) * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.reshape(ctx.sizes) * 2, None


class Outer:
    class Scaled(Function):
        @staticmethod
        def forward(ctx, x, factors, name):
            ctx.factor = sum(factors)
            return x * ctx.factor

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factor, None, None


def weights(*sizes):
    return nn.ParameterList([nn.Parameter(0.3 * torch.randn(*size)) for size in sizes])


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.05)


@program
def linear_layers(out):
    model, x, y = weights((48, 16), (48,), (64, 48), (4, 64)), torch.randn(512, 16), torch.randint(4, (512,))

    def loss():
        h = torch.tanh(Linear.apply(x, model[0], model[1]))
        h = torch.tanh(Linear.apply(h, model[2], None))
        return F.cross_entropy(Linear.apply(h, model[3]), y)

    train(sgd(model), out, loss)
    return model


@program
def normed_tokens(out):
    settings = Settings(eps=1e-6)
    model, x, y = weights((12, 48), (48,), (48, 48), (48,), (48, 3)), torch.randn(96, 10, 12), torch.randint(3, (96, 10))

    def loss():
        h = Normed.apply(x @ model[0], model[1], settings)
        h = Normed.apply(torch.relu(h @ model[2]), model[3], settings)
        return F.cross_entropy((h @ model[4]).flatten(0, 1), y.flatten())

    train(sgd(model), out, loss)
    return model


@program
def head_and_loss_at_once(out):
    model, x, y = weights((24, 16), (64, 24)), torch.randn(64, 12, 16), torch.randint(64, (64, 12))

    def loss():
        h = torch.tanh(x @ model[0].t()).flatten(0, 1)
        return TokensLoss.apply(h, model[1], y.flatten()) / y.numel()

    train(sgd(model), out, loss)
    return model


@program
def codebook(out):
    model, x = weights((16, 48), (48, 12), (32, 12), (12, 48), (48, 16)), torch.randn(512, 16)

    def loss():
        z = torch.tanh(x @ model[0]) @ model[1]
        code, which = Nearest.apply(z, model[2])
        out(torch.bincount(which, minlength=32).double())
        return F.mse_loss(torch.tanh(code @ model[3]) @ model[4], x) + 0.1 * F.mse_loss(z, code.detach())

    train(sgd(model), out, loss)
    return model


@program
def rows_that_are_counted(out):
    model, x = weights((6, 24), (240, 8)), torch.randn(192, 10, 6)

    def loss():
        h = Folded.apply(torch.tanh(x @ model[0]), len(x))
        return Outer.Scaled.apply(h @ model[1], (1, 0.5), "half").square().mean()

    train(sgd(model), out, loss)
    return model


if __name__ == "__main__":
    main(PROGRAMS)
