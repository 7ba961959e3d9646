"""Nets whose parameters dominate, without memory from outside: an optimizer's step needs room for parameters, gradients and state, and not for its temporaries beside these."""

import functools
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness import HERE, clean_environment, koila_environment
from optimizer_budgets import KINDS
from selection import only

# Whose step holds all of its temporaries at once by other operators than those that work element by element, or makes its state from one of them.
NOT_YET = {"adafactor", "rprop", "sgd", "sgd-momentum", "sgd-nesterov", "sgd-maximize", "sgd-decay"}
FOREACH = [f"{kind}-foreach" for kind in KINDS if kind not in NOT_YET]
LOOP = [f"{kind}-loop" for kind in KINDS if kind not in NOT_YET]


@functools.cache
def found(nets, optimizers, budgets):
    """What optimizer_budgets.py finds: {(net, optimizer): (fixed, peak, [(judgement, budget, error, events)])}."""
    environment = koila_environment("rescue", KOILA_LADDER="0,1", KOILA_LOG="off")
    with tempfile.TemporaryDirectory(prefix="koila-e2e-") as folder:
        out = Path(folder, "out")
        names = [argument for net in nets for argument in ("--net", net)] + [argument for optimizer in optimizers for argument in ("--optimizer", optimizer)]
        subprocess.run([sys.executable, HERE / "optimizer_budgets.py", "--budgets", str(budgets), "--out", out, *names], env=clean_environment(environment), check=True, timeout=900,
                       stdout=subprocess.DEVNULL)
        return pickle.loads(out.read_bytes())


def assert_all_train(net, optimizer, runs):
    fixed, peak, outcomes = runs
    assert peak > fixed
    faults = [(judged, budget, error, events) for judged, budget, error, events in outcomes if judged != "exact"]
    assert not faults, f"{net}, {optimizer}, {fixed:,} B to {peak:,} B: {faults}"
    assert any(rung == "micro-batches" for _, _, _, events in outcomes for rung, _ in events), "plain would have got by"


@pytest.mark.parametrize("optimizer", FOREACH)
def test_foreach(optimizer):
    assert_all_train("mlp", optimizer, found(("mlp",), tuple(FOREACH), 4)["mlp", optimizer])


@pytest.mark.parametrize("optimizer", LOOP)
def test_loop(optimizer):
    assert_all_train("mlp", optimizer, found(("mlp",), tuple(LOOP), 4)["mlp", optimizer])


NETS, OF_NETS = ("twice", "gan", "clipped"), ("adamw-foreach",)


@pytest.mark.parametrize("net", ["gan", "clipped"])
def test_nets(net):
    assert_all_train(net, OF_NETS[0], found(NETS, OF_NETS, 4)[net, OF_NETS[0]])


def test_net_run_twice():
    """Its backward pass sums gradients of three uses, and needs more than the floor; the optimizer needs no more than that."""
    fixed, peak, outcomes = found(NETS, OF_NETS, 4)["twice", OF_NETS[0]]
    assert {judged for judged, *_ in outcomes} <= {"exact", "refused"}
    assert outcomes[-1][0] == "exact"
