"""Steps that read a buffer which an operator moves later in the same step, with no version counted up (running statistics, what an observer of a fake quantisation has seen) or with one. A gradient reads what is there
when backward comes. Each in a child of its own; prints what it gave, or its error, as one JSON line: see test_moving_buffers.py.

python moving_buffers.py WAY [CASE...]: memory runs out as the environment says ("free"), or at an operator ("forward:" and the number of the point), or in backward ("backward:" and the
number of the allocation). "large": as "free", with large images."""

import ctypes
import itertools
import json
import os
import sys
import warnings

import torch

functional = torch.nn.functional
aten = torch.ops.aten
warnings.simplefilter("ignore")

ROWS, STEPS = 6, 3


class Way:
    """Where allocations fail."""

    def __init__(self, text):
        self.kind, _, number = text.partition(":")
        self.number = int(number or 0)
        self.points = itertools.count(1)
        self.library = ctypes.CDLL(None) if self.kind in ("forward", "backward") else None

    def inject(self, rule):
        if self.library is not None:
            assert self.library.koila_set_inject(rule) == 0

    def point(self):
        """The next operator may run out."""
        if self.kind == "forward" and next(self.points) == self.number:
            self.inject(b"nth:1")
            torch.linspace(0.5, 1.5, ROWS * 16)
            self.inject(b"")

    def backward(self, loss, **how):
        if self.kind == "backward":
            self.inject(f"nth:{self.number}".encode())
        loss.backward(**how)
        self.inject(b"")


class Net(torch.nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Conv2d(3, 4, 1, dtype=dtype)
        self.last = torch.nn.Conv2d(4, 2, 1, dtype=dtype)
        self.bn = torch.nn.BatchNorm2d(4, momentum=0.5, dtype=dtype)
        with torch.no_grad():
            self.bn.weight.copy_(torch.linspace(0.5, 2, 4))
        self.both = torch.nn.Parameter(torch.linspace(-1, 1, 4, dtype=dtype).view(4, 1, 1))
        self.register_buffer("scale", torch.linspace(0.5, 1, 4, dtype=dtype))
        self.register_buffer("stacked", torch.stack([torch.linspace(-1, 1, 4, dtype=dtype), torch.linspace(1, 2, 4, dtype=dtype)]))

    def evaluated(self, h):
        self.bn.eval()
        return self.bn(h)

    def trained(self, h):
        self.bn.train()
        return self.bn(h)

    def statistics(self):
        return self.bn.running_mean, self.bn.running_var


def by_channel(t):
    return t.view(1, -1, 1, 1)


CASES = {}


def case(function):
    CASES[function.__name__.replace("_", " ")] = function
    return function


@case
def eval_then_train(net, x, y, way):
    a = net.evaluated(net.first(x))
    way.point()
    b = net.trained(net.first(y))
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean()


@case
def functional_calls(net, x, y, way):
    mean, var = net.statistics()
    a = functional.batch_norm(net.first(x), mean, var, net.bn.weight, net.bn.bias, False, 0.3)
    b = functional.batch_norm(net.first(y), mean, var, None, None, True, 0.3)
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean()


@case
def eval_train_eval_train(net, x, y, way):
    h = net.first(x)
    for _ in range(2):
        h = net.evaluated(h) + h
        way.point()
        h = net.trained(h).sin() + h
    way.point()
    return net.last(h).square().mean()


@case
def one_value_in_both_ways(net, x, y, way):
    h = net.first(x)
    a, b = net.evaluated(h), net.trained(h)
    way.point()
    return (net.last(a) * net.last(b)).mean()


@case
def moved_without_gradients(net, x, y, way):
    h = net.first(x)
    a = net.evaluated(h)
    with torch.no_grad():
        net.trained(h)
    way.point()
    return net.last(a.square()).mean()


@case
def moved_by_an_operator_that_says_so(net, x, y, way):
    mean, var = net.statistics()
    a = net.evaluated(net.first(x))
    way.point()
    b = aten._native_batch_norm_legit(net.first(y), None, None, mean, var, True, 0.5, 1e-5)[0]
    c = net.evaluated(net.first(y))
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean() + net.last(c.square()).mean()


@case
def moved_by_statistics_alone(net, x, y, way):
    mean, var = net.statistics()
    a = net.evaluated(net.first(x))
    with torch.no_grad():
        torch.batch_norm_update_stats(net.first(y), mean, var, 0.5)
    c = net.evaluated(net.first(y))
    way.point()
    return net.last(a.square()).mean() + net.last(c.square()).mean()


@case
def moved_by_an_instance_norm(net, x, y, way):
    mean, var = net.statistics()
    a = net.evaluated(net.first(x))
    b = functional.instance_norm(net.first(y), mean, var, None, None, True, 0.5)
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean()


@case
def an_instance_norm_in_evaluation(net, x, y, way):
    mean, var = net.statistics()
    a = functional.instance_norm(net.first(x), mean, var, None, None, False, 0.5)
    b = net.trained(net.first(y))
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean()


@case
def another_operator_reads_the_statistics(net, x, y, way):
    mean, var = net.statistics()
    a = net.first(x) * by_channel(var) + by_channel(mean)
    way.point()
    b = net.trained(net.first(y))
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean()


@case
def statistics_are_rows_of_one_buffer(net, x, y, way):
    a = functional.batch_norm(net.first(x), net.stacked[0], net.stacked[1], None, None, False, 0.3)
    b = functional.batch_norm(net.first(y), net.stacked[0], net.stacked[1], None, None, True, 0.3)
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean()


@case
def statistics_that_the_step_made(net, x, y, way):
    h = net.first(x)
    with torch.no_grad():
        mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3))
    a = functional.batch_norm(h, mean, var, None, None, False, 0.3)
    b = functional.batch_norm(net.first(y), mean, var, None, None, True, 0.3)
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean() + mean.sum() * var.sum()


@case
def in_a_checkpoint(net, x, y, way):
    a = torch.utils.checkpoint.checkpoint(lambda t: net.evaluated(net.first(t)).square(), x, use_reentrant=False)
    b = net.trained(net.first(y))
    net.bn.eval()
    way.point()
    return net.last(a).mean() + net.last(b.tanh()).mean()


@case
def two_passes(net, x, y, way):
    a = net.evaluated(net.first(x))
    b = net.trained(net.first(y))
    way.point()
    loss = net.last(a.square()).mean() + net.last(b.tanh()).mean()
    way.backward(loss, retain_graph=True)
    with torch.no_grad():
        net.trained(net.first(y + 1))
    return loss


@case
def statistics_that_are_reset(net, x, y, way):
    a = net.evaluated(net.first(x))
    net.bn.reset_running_stats()
    way.point()
    return net.last(a.square()).mean()


@case
def a_mean_that_moves(net, x, y, way):
    h = net.first(x)
    a = h * by_channel(net.scale)
    net.scale.mul_(0.9).add_(h.detach().mean((0, 2, 3)), alpha=0.1)
    way.point()
    return net.last(a.square()).mean()


@case
def labels_that_are_written_to(net, x, y, way):
    labels = y[:, :2].clone()
    loss = functional.mse_loss(net.last(net.first(x)), labels)
    way.point()
    labels.zero_()
    way.point()
    return loss + net.last(net.first(y)).mean()


@case
def inputs_that_are_written_to(net, x, y, way):
    own = x.clone()
    h = net.first(own).tanh()
    way.point()
    own.zero_()
    way.point()
    return net.last(h).square().mean()


@case
def inputs_that_no_gradient_reads(net, x, y, way):
    own = x.clone()
    h = net.first(x) + own.sum(1, keepdim=True)
    own.zero_()
    way.point()
    return net.last(h).square().mean() + own.sum()


@case
def an_observer(net, x, y, way):
    quantize = torch.ao.quantization.FusedMovingAvgObsFakeQuantize(averaging_constant=0.3)
    with torch.no_grad():
        quantize(y)
    scale = quantize.scale
    a = net.first(x) * scale
    way.point()
    b = quantize(net.first(y))
    c = net.first(x) * scale
    way.point()
    return net.last(a.square()).mean() + net.last(b).mean() + net.last(c.square()).mean()


@case
def a_learnable_quantisation(net, x, y, way):
    quantize = torch.ao.quantization.FusedMovingAvgObsFakeQuantize(averaging_constant=0.3)
    with torch.no_grad():
        quantize(y)
    a = aten._fake_quantize_learnable_per_tensor_affine(net.first(x), quantize.scale, quantize.zero_point.float(), 0, 255, 1.0)
    b = quantize(net.first(y))
    way.point()
    return net.last(a.square()).mean() + net.last(b).mean()


@case
def noise_that_is_written_to(net, x, y, way):
    noise = torch.ones(4, 1, 1, dtype=x.dtype)
    a = net.first(x) * noise
    torch._C._nn.rrelu_with_noise(torch.full((4, 1, 1), -1, dtype=x.dtype), noise, 0.5, 0.5, True)
    b = net.first(x) * noise
    way.point()
    return net.last(a.square()).mean() + net.last(b.square()).mean()


@case
def a_parameter_that_a_fused_optimizer_moves(net, x, y, way):
    a = net.first(x) * net.both
    way.point()
    torch.optim.SGD([net.both], lr=0.5, fused=True).step() if net.both.grad is not None else None
    b = net.first(x) * net.both
    way.point()
    return net.last(a.square()).mean() + net.last(b.square()).mean()


@case
def written_through_data(net, x, y, way):
    a = net.evaluated(net.first(x))
    net.bn.running_mean.data.add_(0.5)
    b = net.evaluated(net.first(y))
    way.point()
    return net.last(a.square()).mean() + net.last(b.tanh()).mean()


SINGLE = {"an observer", "a learnable quantisation"}  # precision


def run(name, way):
    side = 64 if way.kind == "large" else 5
    dtype = torch.float32 if name in SINGLE else torch.float64
    net = Net(dtype)
    ballast = torch.zeros(1 << 24)  # the tape may hold one part in two hundred of what is in use
    given = []
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x, y = (torch.randn(ROWS, 3, side, side, dtype=dtype, generator=generator) for _ in range(2))
        if step > 0 and way.kind in ("forward", "backward"):
            break  # one step is enough: what comes after has been split from its first operator on
        loss = CASES[name](net, x, y, way)
        way.backward(loss)
        given += [loss.detach(), *(q.grad for q in net.parameters() if q.grad is not None), *net.buffers()]
        given = [t.clone() for t in given]
        with torch.no_grad():
            for q in net.parameters():
                if q is not net.both:
                    q.grad = None
    assert ballast.sum() == 0
    return [t.double().flatten().tolist() for t in given]


def main(way, chosen):
    for name in CASES:
        if chosen and name not in chosen:
            continue
        sys.stdout.flush()
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            if status:
                print(json.dumps({"case": name, "error": f"ended with {status}"}), flush=True)
            continue
        try:
            said = {"gave": run(name, Way(way))}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {str(error)[:90]}"}
        print(json.dumps({"case": name, **said}), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
