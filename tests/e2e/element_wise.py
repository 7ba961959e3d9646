"""autograd.Functions that work element by element (names that begin with Is), and such as look like it and do not (IsNot): which of them torchglue/operators/element_wise.py takes for one, as JSON."""

import inspect
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

WIDTH, NOTES = 0.5, []


@staticmethod
def unchanged(ctx, g):
    return g


@staticmethod
def doubled(ctx, g):
    return g * 2


class IsTurned(Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.strength * g, None


class IsGivenBack(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g.neg()


class IsRounded(Function):
    backward = unchanged

    @staticmethod
    def forward(ctx, x):
        return x.round()


class IsDoubled(Function):
    backward = doubled

    @staticmethod
    def forward(ctx, x):
        return x * 2


class IsMasked(Function):
    @staticmethod
    def forward(ctx, x):
        """A sign."""
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[x.abs() > 1] = 0
        grad_input *= 2
        return grad_input


class IsOfModule(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.gt(0).float()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (abs(x) < WIDTH).float() / math.pi


class IsKeptWhereWanted(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        if x.requires_grad:
            ctx.save_for_backward(x)
            ctx.alpha = alpha
        return (x >= 0).to(x)

    @staticmethod
    def backward(ctx, g):
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = ctx.alpha / 2 / (1 + (math.pi / 2 * ctx.alpha * ctx.saved_tensors[0]).pow_(2)) * g
        return to_x, None


class IsClipped(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.inside, ctx.half = (x >= low) & ~(x > high), 0.5
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx, g):
        return torch.where(ctx.inside, g, ctx.half * g), None, None


class IsSoft(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        t = F.softplus(x).tanh()
        return g * (x * (1 - t * t) * (1 - torch.exp(-F.softplus(x))) + t)


class IsNotAMean(Function):
    backward = unchanged

    @staticmethod
    def forward(ctx, x):
        return x - x.mean()


class IsNotOfItsSizes(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[0]
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g / ctx.n


class IsNotOfALength(Function):
    backward = unchanged

    @staticmethod
    def forward(ctx, x):
        return x / len(x)


class IsNotByPlaces(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[0] = 0
        return g


class IsNotByNumbers(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[g.long()] = 0
        return g


class IsNotClippedByNorm(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g / g.norm()


class IsNotRandom(Function):
    backward = unchanged

    @staticmethod
    def forward(ctx, x):
        return x + torch.rand_like(x)


class IsNotQuiet(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        NOTES.append(1)
        return g * 2


class IsNotWithoutPrinting(Function):
    backward = doubled

    @staticmethod
    def forward(ctx, x):
        print("forward")
        return x * 2


class IsNotWrittenTo(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        g *= 2
        return g


class IsNotInPlace(Function):
    backward = unchanged

    @staticmethod
    def forward(ctx, x):
        return F.relu(x, True)


class IsNotKept(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.x


class IsNotKeptByAnotherName(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sigmoid()
        z = y.detach()
        ctx.y = z
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y * (1 - ctx.y)


class IsNotKeptAsTruths(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x.data.bool()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask


class IsNotOtherwiseWithoutGradients(Function):
    backward = unchanged

    @staticmethod
    def forward(ctx, x):
        if x.requires_grad:
            return x * 2
        return x * 1


class IsNotALoop(Function):
    @staticmethod
    def forward(ctx, x):
        for _ in range(3):
            x = x * 2
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 8


class IsNotOfIndices(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return torch.where(g)


class IsNotWithAContextOfItsOwn(Function):
    backward = doubled

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class IsNotWithTwoResults(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        return g * 2 + h * 3


class IsNotWithADefault(Function):
    @staticmethod
    def forward(ctx, x, k=2):
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


def main():
    names = {"modules": sys.modules, "__builtins__": __builtins__}
    exec((Path(__file__).resolve().parents[2] / "torchglue" / "operators" / "element_wise.py").read_text(), names)
    said = {}
    for name, function in globals().items():
        if name.startswith("Is") and issubclass(function, Function):
            arguments = len(inspect.signature(function.forward).parameters) - 1
            said[name] = names["answer"](function, (True,) + (False,) * (arguments - 1)) is not None
    print(json.dumps(said))


if __name__ == "__main__":
    main()
