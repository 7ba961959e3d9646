"""Training programs, each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

Every program is in float64, calls `out` with what it would print, and is compared by that, its parameters, their gradients, its buffers and the generator's state. Each run is in a forked
process of its own.
"""

import json
import os
import pickle
import sys
from pathlib import Path

import numpy
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

SHARES = (0.9, 0.8, 0.7, 0.6)
STEPS = 3


class Programs(dict):
    """Functions by their names: each gets `out` and returns the model. Shares of plain's peak are SHARES but for those of `shares`."""

    def __init__(self):
        self.shares = {}

    def shares_of(self, name):
        return self.shares.get(name, SHARES)

    def __call__(self, function):
        self[function.__name__] = function
        return function


def train(optimizer, out, loss_of):
    for _ in range(STEPS):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        out(loss)
        optimizer.step()


def run(program, koila, budget):
    """("trains", what it left, peak) or ("refused", the reasons, peak)."""
    torch.manual_seed(3)
    left = []
    koila.reset_peak()
    koila.limit(budget)
    with koila.refusals() as reasons:
        try:
            model = program(lambda *values: left.extend(v.detach().clone() for v in values))
        except torch.OutOfMemoryError:
            return "refused", reasons, koila.peak()
    peak = koila.peak()
    koila.limit(0)
    left += [v.detach().clone() for v in model.state_dict().values()] + [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return "trains", [v.numpy() for v in [*left, torch.get_rng_state()]], peak


def apart(function, *args):
    """What the function gives in a process of its own; None where that crashed."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        with open(writing, "wb") as file:
            pickle.dump(function(*args), file)
            file.flush()
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        data = file.read()
    os.wait()
    return pickle.loads(data) if data else None


def furthest(a, b):
    """How far the arrays lie apart, as a share of the largest entry of each; the gradient of a key's bias is zero by nature."""
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b)):
        return float("inf")
    return max(float(abs(x - y).max() / (abs(x).max() + 1e-6)) for x, y in zip(a, b) if x.size)


def main(programs):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # a forked child has no others
    koila, found = Koila(), {}
    for name in sys.argv[1:] or programs:
        _, whole, peak = apart(run, programs[name], koila, 0)
        outcomes = []
        for share in programs.shares_of(name):
            budget = int(peak * share)
            status, left, reached = apart(run, programs[name], koila, budget)
            outcome = "; ".join(left) or "refused" if status == "refused" else "over budget" if reached > budget else "wrong" if not furthest(whole, left) < 1e-9 else "exact"
            outcomes.append(outcome)
        found[name] = outcomes
    print(json.dumps(found))
