"""Small pieces of programs, each of whose allocations fails in turn, each time in a child of its own: what koila has learned from one is not to help the
next. test_ladder.py runs it, as `python ladder_steps.py OUT [SPEC...]`, once for each ladder. What came of it all is pickled to OUT.

A scenario is a function that makes its tensors and returns what is to fail, and a function that says which tensors there are to be looked at after it.
"""

import os
import pickle
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

ROWS = 30


def step_of_training(limit):
    """A model whose forward or backward pass fails; double precision, since sums over micro-batches are rounded."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.LayerNorm(20), torch.nn.Linear(20, 3)).double()
    x, y = torch.randn(ROWS, 6, dtype=torch.double), torch.randint(3, (ROWS,))
    seen = {}

    def go():
        with limit("forward"):
            seen["loss"] = F.cross_entropy(model(x), y)
        with limit("backward"):
            seen["loss"].backward()

    return go, lambda: [*model.parameters(), *[p.grad for p in model.parameters()], seen.get("loss")]


def forward(limit):
    return step_of_training(lambda part: limit(part == "forward"))


def backward(limit):
    return step_of_training(lambda part: limit(part == "backward"))


def of_tensors(make):
    """A scenario from a function that makes tensors and returns them and the call to fail."""
    def scenario(limit):
        tensors, call = make()
        results = []

        def go():
            with limit(True):
                found = call()
            results.extend(found if isinstance(found, (list, tuple)) else [found])

        return go, lambda: [*tensors, *results]
    scenario.__name__ = make.__name__
    return scenario


@of_tensors
def out_of_place():
    x = torch.randn(ROWS, 5, dtype=torch.double)
    leaf = x.detach().requires_grad_()
    return [x], lambda: torch.softmax(leaf.sort(0).values, 1).detach()


@of_tensors
def in_place():
    x, y = torch.randn(ROWS, 5), torch.randint(9, (ROWS, 5))
    return [x, y], lambda: x.add_(y, alpha=2)


@of_tensors
def in_place_at_a_mask():
    x, mask = torch.randn(ROWS, 5), torch.rand(ROWS, 5) > 0.5
    return [x, mask], lambda: x.masked_scatter_(mask, x.flip(0))


@of_tensors
def in_place_scattered():
    x, y, i = torch.randn(ROWS, 5), torch.randn(ROWS, 5), torch.randint(ROWS, (ROWS, 5))
    return [x], lambda: x.scatter_reduce_(0, i, y, "mean", include_self=False)


@of_tensors
def in_place_drawn():
    x = torch.randn(ROWS, 5)
    return [x], lambda: [x.bernoulli_(torch.rand(ROWS, 5)), torch.rand(3)]


@of_tensors
def out_resized():
    x, y, out = torch.randn(ROWS, 5), torch.randn(5, 7), torch.empty(0)
    return [x, out], lambda: torch.mm(x, y, out=out)


@of_tensors
def out_of_another_shape():
    x, out = torch.randn(ROWS, 5), torch.randn(2, 2)
    return [x, out], lambda: torch.cat([x, x, x], out=out.resize_(0))


@of_tensors
def out_shares_memory():
    x, y = torch.randn(ROWS, 5), torch.randint(9, (ROWS, 5))
    return [x], lambda: torch.addcmul(y, x, x, out=x)


@of_tensors
def out_of_two():
    """Both have memory already: nobody could compare what is in memory that a call got before it failed."""
    x, values, indices = torch.randn(ROWS, 5), torch.zeros(ROWS, 5).resize_(0), torch.zeros(ROWS, 5, dtype=torch.long).resize_(0)
    return [x, values, indices], lambda: torch.sort(x, dim=0, out=(values, indices))


@of_tensors
def out_of_another_type():
    x, y, out = torch.randn(ROWS, 5), torch.randn(ROWS, 5), torch.zeros(ROWS, 5, dtype=torch.double)
    return [x, out], lambda: torch.add(x, y, out=out)


@of_tensors
def foreach_in_place():
    xs = [torch.randn(n, 5) for n in (3, 9, 30)]
    ys = [torch.randint(9, x.shape) for x in xs]
    return xs, lambda: torch._foreach_add_(xs, ys)


@of_tensors
def foreach_out_of_place():
    xs = [torch.randn(n, 5) for n in (3, 9, 30)]
    return xs, lambda: torch._foreach_sqrt(torch._foreach_mul(xs, xs))


@of_tensors
def running_statistics():
    x, norm = torch.randn(ROWS, 5, dtype=torch.double), torch.nn.BatchNorm1d(5).double()
    return [x, norm.running_mean, norm.running_var], lambda: norm(x).detach()


@of_tensors
def drawn():
    x = torch.randn(ROWS, 5, dtype=torch.double)
    return [x], lambda: [torch.dropout(x, 0.3, True), torch.rand(3)]


SCENARIOS = {scenario.__name__: scenario for scenario in (
    forward, backward, out_of_place, in_place, in_place_at_a_mask, in_place_scattered, in_place_drawn, out_resized,
    out_of_another_shape, out_shares_memory, out_of_two, out_of_another_type, foreach_in_place, foreach_out_of_place, running_statistics, drawn)}


class Limit:
    def __init__(self, koila, inject, budget):
        self.koila, self.inject, self.budget = koila, inject, budget
        self.allocations = 0

    def __call__(self, now):
        self.now = now
        return self

    def __enter__(self):
        if self.now:
            self.koila.limit(self.koila.live() + self.budget if self.budget is not None else 0, self.inject)
            self.start = self.koila.allocations()

    def __exit__(self, *_):
        if self.now:
            self.koila.limit(0)
            self.allocations = self.koila.allocations() - self.start


def copied(t):
    """Its values as a NumPy array; its sizes where it has no memory for them, as an out= argument has whose call failed."""
    if t is None:
        return None
    if t.untyped_storage().nbytes() < t.numel() * t.element_size():
        return tuple(t.shape)
    try:
        return t.detach().numpy().copy()
    except RuntimeError as error:
        return f"not to be read: {error}"


def run(*case, **limits):
    """run_here() in a child; or how that ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with open(write, "wb") as file:
            pickle.dump(run_here(*case, **limits), file)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"crash": status} if status else pickle.loads(text)


def run_here(scenario, koila, inject=None, budget=None):
    torch.manual_seed(0)
    limit = Limit(koila, inject, budget)
    go, look = SCENARIOS[scenario](limit)
    found, began = {"error": None}, time.perf_counter()
    try:
        go()
    except Exception as error:
        found["type"] = type(error).__name__
        found["error"] = str(error).split("\n")[0].split(";")[0]
    found.update(seconds=time.perf_counter() - began, allocations=limit.allocations)
    found["tensors"] = [copied(t) for t in look()]
    found["generator"] = torch.get_rng_state().numpy().copy()
    report = koila.report()
    found["events"] = [(event["rung"], event["reason"]) for event in report["oom_events"] for _ in range(event["count"])]
    found["notes"] = report["notes"]
    return found


def main(out, *specs):
    koila = Koila()
    found = {}
    for scenario in SCENARIOS:
        found[scenario, "whole"] = whole = run(scenario, koila)
        for number in range(1, whole["allocations"] + 1):
            found[scenario, f"nth:{number}"] = run(scenario, koila, f"nth:{number}")
        for spec in specs:
            found[scenario, spec] = run(scenario, koila, spec)
        # From the first allocation that does not fit there is no room for anything.
        found[scenario, "full"] = run(scenario, koila, budget=1)
    with open(out, "wb") as file:
        pickle.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
