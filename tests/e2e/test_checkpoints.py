"""Out of memory under saved-tensor hooks: an operator that is made again has packed once what it saves, whoever's hooks these are."""

import functools
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import pytest

from harness import HERE, clean_environment, koila_environment
from selection import only

OF_TORCH = ("no_reentrant", "reentrant", "to_its_end", "unchecked", "nested", "around_all", "selective", "selective_by_count", "sequential",
            "sequential_reentrant", "saved_on_cpu", "saved_on_cpu_within", "weight_within", "gpt2_reentrant", "gpt2_no_reentrant")
OWN = ("own_hooks", "failing_hooks")


@functools.cache
def found(scenarios, specs, mode="rescue", ladder="0,1,2"):
    """What checkpoint_steps.py finds: {(scenario, what failed): what came of it}."""
    with tempfile.TemporaryDirectory(prefix="koila-e2e-") as folder:
        out = Path(folder, "out")
        subprocess.run([sys.executable, HERE / "checkpoint_steps.py", out, ",".join(scenarios), specs], check=True, timeout=300,
                       env=clean_environment(koila_environment(mode, KOILA_LADDER=ladder, KOILA_LOG="off")))
        return pickle.loads(out.read_bytes())


def same(a, b, tolerance):
    if not isinstance(a, numpy.ndarray) or not isinstance(b, numpy.ndarray):
        return type(a) is type(b) and a == b
    return a.shape == b.shape and a.dtype == b.dtype and (numpy.allclose(a, b, tolerance, tolerance) if tolerance else numpy.array_equal(a, b))


def all_same(expected, actual, tolerance=0):
    return len(expected) == len(actual) and all(same(a, b, tolerance) for a, b in zip(expected, actual))


def check(scenarios, specs, ladder="0,1,2"):
    """Exact, or plain's error with a state that plain leaves. Returns how often it was exact after something had failed."""
    exact = 0
    plainly = found(scenarios, specs, "track")
    for (name, what), actual in found(scenarios, specs, ladder=ladder).items():
        about = f"{name}, {what}, ladder {ladder}: {actual.get('events')} {actual.get('error')}"
        assert "crash" not in actual, about
        whole = plainly[name, "whole"]
        rungs = {rung for rung, _ in actual["events"]}
        tolerance = 1e-11 if "micro-batches" in rungs else 0
        if actual["error"]:
            assert actual["type"] == "OutOfMemoryError", about
            if what.startswith("random"):
                continue  # which of plain's errors it is nobody can say
            failures = [failure for (other, _), failure in plainly.items() if other == name and failure["error"]]
            assert any(all_same(failure["tensors"], actual["tensors"], tolerance) for failure in failures), about
            continue
        assert numpy.allclose(whole["losses"], actual["losses"], tolerance, tolerance), about
        for expected, gradients in zip(whole["gradients"], actual["gradients"], strict=True):
            assert all_same(expected, gradients, tolerance), about
        assert all_same(whole["tensors"], actual["tensors"], tolerance), about
        assert numpy.array_equal(whole["generator"], actual["generator"]), about
        exact += bool(rungs)
    return exact


@pytest.mark.parametrize("scenario", only(["reentrant", "selective", "own_hooks"], OF_TORCH + OWN))
def test_some_allocations_fail(scenario):
    assert check((scenario,), "each9,random:0.05:1") > 0


def test_every_second_allocation_fails():
    assert check(("no_reentrant", "own_hooks"), "each2") > 0


@pytest.mark.parametrize("ladder", only(["0,1"], ["0", "0,1", "1"]))
def test_other_ladders(ladder):
    scenarios = ("no_reentrant", "nested", "to_its_end", "weight_within", "saved_on_cpu", "failing_hooks")
    assert check(scenarios, "each11", ladder) > 0


def test_draws_within():
    """Drawn once more in backward; not split, where they would be others."""
    assert check(("dropped",), "each9", "0") > 0
