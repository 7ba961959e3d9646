"""autograd.Functions that more than one file of programs uses."""

from torch.autograd import Function


class Reversed(Function):
    """The gradient changes its sign; the value is the input itself."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


class Doubled(Function):
    """Writes to its input, and hands it back."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2
