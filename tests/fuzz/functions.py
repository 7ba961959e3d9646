"""Functions of a program's own, as people write them."""

import torch


def autocast():
    return torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16)


class Scale(torch.autograd.Function):
    """Twice its input, three times the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Square(torch.autograd.Function):
    """With a saved tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Halves(torch.autograd.Function):
    """Two outputs, of which one has no gradient, and a number beside the tensor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        sign = x.sign()
        ctx.mark_non_differentiable(sign)
        return x * factor, sign

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * ctx.factor, None


class Identity(torch.autograd.Function):
    """A straight-through estimator: rounds, and hands the gradient on."""

    @staticmethod
    def forward(ctx, x):
        return (x * 4).floor() / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Marked(torch.autograd.Function):
    """Writes to its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(1.5)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.5


class Bent(torch.autograd.Function):
    """Its values are each row's own, its gradient is not."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + gradient.mean(0, keepdim=True)


class Branches(torch.nn.Module):
    """A trunk with two heads, of which a call uses one, or both."""

    def __init__(self, trunk, *heads):
        super().__init__()
        self.trunk, self.heads = trunk, torch.nn.ModuleList(heads)

    def forward(self, x, which):
        features = self.trunk(x)
        return self.heads[0](features) + self.heads[1](features) * 0.3 if which is None else self.heads[which](features)


def averaged(_, bucket):
    """A communication hook, as DistributedDataParallel does it by itself."""
    torch.distributed.all_reduce(bucket.buffer().div_(2))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def halved(_, bucket):
    """One that waits for nothing, and changes what it sends."""
    work = torch.distributed.all_reduce(bucket.buffer().mul_(0.25), async_op=True)
    return work.get_future().then(lambda future: future.value()[0] * 2)
