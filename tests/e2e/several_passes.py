"""Several backward passes over one step: losses that share operators which have saved nothing, graphs that are kept for some passes and not for others, passes that stop early. Plain PyTorch frees what a
node has saved when that node has run, and no other; what comes of it is the same numbers, or the same error, in micro-batches.

python several_passes.py WAY [CASE...]: memory runs out as the environment says ("free"), or at an operator ("forward:" and the number of the point). One JSON line for each case, which runs in a child of its own."""

import ctypes
import itertools
import json
import os
import sys
import warnings

import torch

functional = torch.nn.functional
warnings.simplefilter("ignore")
ROWS, STEPS = 6, 3


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = torch.nn.Linear(5, 8)
        self.left, self.right = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
        self.norm = torch.nn.BatchNorm1d(8)


class Step:
    """Points where an operator may run out, and the gradients of leaves."""

    def __init__(self, way, net, x):
        self.kind, _, number = way.partition(":")
        self.number, self.points = int(number or 0), itertools.count(1)
        self.net, self.x, self.gave = net, x, []
        self.library = ctypes.CDLL(None) if self.kind == "forward" else None

    def point(self):
        if self.kind == "forward" and next(self.points) == self.number:
            assert self.library.koila_set_inject(b"nth:1") == 0
            torch.linspace(0.5, 1.5, ROWS * 64)
            assert self.library.koila_set_inject(b"") == 0

    def leaf(self, t):
        leaf = t.detach().clone().requires_grad_()
        self.gave.append(lambda: leaf.grad)
        return leaf

    def keep(self, *values):
        for value in values:
            self.gave.append(lambda value=value: value.detach())

    def found(self):
        given = [f() for f in self.gave] + [q.grad for q in self.net.parameters()]
        return [None if t is None else t.double().flatten().tolist() for t in given]


CASES = {}


def case(function):
    CASES[function.__name__.replace("_", " ")] = function
    return function


def encoded(step):
    """Two halves of the batch, embedded without a graph, as leaves: what a cached loss goes on from."""
    with torch.no_grad():
        parts = [step.net.trunk(half) for half in step.x.chunk(2)]
    return [step.leaf(part) for part in parts]


def pairs(step, a, h):
    """A loss of some rows against all."""
    loss = functional.cross_entropy(functional.normalize(a, dim=-1) @ functional.normalize(h, dim=-1).t(), torch.arange(len(a)))
    step.point()
    return loss


@case
def a_cached_loss(step):
    a, p = torch.cat(encoded(step)), torch.cat(encoded(step)[::-1])
    for begin in range(0, ROWS, 2):
        loss = pairs(step, a[begin:begin + 2], p)
        loss.backward()
        step.keep(loss)


@case
def a_cached_loss_of_a_few_operators(step):
    h = torch.cat(encoded(step))
    for begin in range(0, ROWS, 2):
        step.point()
        loss = step.net.left(h[begin:begin + 2]).square().mean()
        step.point()
        loss.backward()


PARTS = {"split": lambda h: h.split(2), "chunk": lambda h: h.chunk(3), "unbind": lambda h: h.unbind(1), "slices": lambda h: [h[i:i + 2] for i in range(0, ROWS, 2)], "views": lambda h: [h.view(ROWS, 2, 4)[:, i] for i in (0, 1)],
         "columns": lambda h: [h[:, :4], h[:, 4:]], "rows": lambda h: [h[i] for i in range(ROWS)], "sums": lambda h: [h.sum(0), h.sum(1), h.mean(1)], "narrow": lambda h: [h.narrow(1, i, 4) for i in (0, 4)],
         "flips": lambda h: [h.flip(0), h.roll(1, 1)], "pads": lambda h: [functional.pad(h, (1, 1)), torch.hstack([h, h])], "in place": lambda h: [h.clone().add_(1), h.clone().sub_(h)]}


def of_parts(name, forward_first, kept):
    def run(step):
        h = torch.cat(encoded(step)) + 1
        step.point()
        losses = [(part.square() * (i + 1)).mean() for i, part in enumerate(PARTS[name](h))]
        step.point()
        for loss in losses:
            loss.backward(retain_graph=kept)
        step.keep(*losses)

    def in_turn(step):
        h = torch.cat(encoded(step)) + 1
        for i, part in enumerate(PARTS[name](h)):
            loss = (part.square() * (i + 1)).mean()
            step.point()
            loss.backward(retain_graph=kept)
            step.keep(loss)

    return run if forward_first else in_turn


for parts in PARTS:
    CASES[f"{parts} of a cat"] = of_parts(parts, True, False)
    CASES[f"{parts} of a cat, each loss in its turn"] = of_parts(parts, False, False)
CASES["split of a cat, kept"] = of_parts("split", True, True)


@case
def losses_that_share_a_trunk(step):  # an error
    h = step.net.trunk(step.x).tanh()
    one, other = step.net.left(h).square().mean(), step.net.right(h).sin().mean()
    step.point()
    one.backward()
    other.backward()


@case
def losses_that_share_a_trunk_that_is_kept(step):
    h = step.net.trunk(step.x).tanh()
    one, other = step.net.left(h).square().mean(), step.net.right(h).sin().mean()
    step.point()
    one.backward(retain_graph=True)
    other.backward()


@case
def a_third_pass_over_what_was_kept(step):  # an error
    h = step.net.trunk(step.x).tanh()
    one, other = step.net.left(h).square().mean(), step.net.right(h).sin().mean()
    step.point()
    one.backward(retain_graph=True)
    other.backward()
    one.backward()


@case
def a_loss_twice(step):  # an error
    loss = step.net.left(step.net.trunk(step.x)).square().mean()
    step.point()
    loss.backward()
    loss.backward()


@case
def a_loss_twice_beside_one_to_come(step):  # an error
    one, other = step.net.left(step.net.trunk(step.x)).square().mean(), step.net.trunk(step.x + 1).sin().mean()
    step.point()
    one.backward()
    one.backward()
    other.backward()


@case
def kept_then_another_then_again(step):
    one, other = step.net.left(step.net.trunk(step.x)).square().mean(), step.net.trunk(step.x + 1).sin().mean()
    step.point()
    one.backward(retain_graph=True)
    other.backward()
    one.backward()


@case
def a_gradient_of_the_last_layer(step):
    h = step.net.trunk(step.x).tanh()
    loss = step.net.left(h).square().mean()
    step.point()
    step.keep(*torch.autograd.grad(loss, [step.net.left.weight]))
    h.sin().mean().backward()


@case
def a_gradient_of_the_last_layer_and_all_of_it(step):  # an error
    loss = step.net.left(step.net.trunk(step.x).tanh()).square().mean()
    step.point()
    step.keep(*torch.autograd.grad(loss, [step.net.left.weight]))
    loss.backward()


@case
def a_gradient_of_the_first_layer(step):  # an error
    h = step.net.trunk(step.x).tanh()
    loss = step.net.left(h).square().mean()
    step.point()
    step.keep(*torch.autograd.grad(loss, [step.net.trunk.weight]))
    h.sin().mean().backward()


@case
def a_loss_that_stays(step):
    h = torch.cat(encoded(step))
    losses = [step.net.left(h[:3]).square().mean(), step.net.right(h[3:]).square().mean()]
    step.point()
    losses[0].backward()
    with torch.no_grad():
        step.keep(h * 2, losses[1] * 2)
        step.net.left.weight.add_(0.01)
    losses[1].backward()
    more = step.net.left(h).sin().mean()
    more.backward()
    step.keep(more, h)
    with torch.no_grad():
        step.net.left.weight.sub_(0.01)


@case
def over_stages(step):
    a = torch.cat(encoded(step))
    h = step.net.norm(a) + a
    one, other = step.net.left(h[:, :8]).square().mean(), (a * 2).sin().mean()
    step.point()
    other.backward()
    one.backward()


@case
def over_stages_that_share_what_saves_nothing(step):
    a = torch.cat(encoded(step))
    mean = a.mean(0)
    one, other = step.net.left(a - mean).square().mean(), step.net.right(a + mean).sin().mean()
    step.point()
    one.backward()
    other.backward()


@case
def an_operator_without_a_rule_between(step):
    a = torch.cat(encoded(step))
    one, other = a.sort(0)[0].square().mean(), a.cumsum(0).sin().mean()
    step.point()
    one.backward()
    other.backward()


def run(name, way):
    net = Net().double()
    generator = torch.Generator().manual_seed(1)
    given = []
    for number in range(STEPS if way == "free" else 1):
        step = Step(way, net, torch.randn(ROWS, 5, dtype=torch.float64, generator=generator))
        CASES[name](step)
        given += step.found()
        net.zero_grad()
    return given


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
            said = {"gave": run(name, way)}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {str(error)[:90]}"}
        print(json.dumps({"case": name, **said}), flush=True)
        os._exit(0)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    main(sys.argv[1], sys.argv[2:])
