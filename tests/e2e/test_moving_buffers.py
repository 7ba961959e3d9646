"""A gradient reads a buffer that has moved since as plain PyTorch's does: what is there when backward comes, or an error where a version counter tells."""

import functools
import json
import subprocess
import sys

import numpy
import pytest

from harness import HERE, clean_environment, koila_environment

LARGE = ("functional calls", "eval train eval train", "one value in both ways", "labels that are written to")
SINGLE = ("an observer", "a learnable quantisation")
# Nothing of it can be split, or made again: what is left is plain's own out-of-memory error.
MAY_RUN_OUT = ("in a checkpoint", "two passes", "moved by an operator that says so", "moved by statistics alone", "an observer", "a learnable quantisation", "noise that is written to",
               "a parameter that a fused optimizer moves", "written through data", "statistics that the step made")


def run(way, environment):
    chosen = LARGE if way == "large" else ()
    done = subprocess.run([sys.executable, str(HERE / "moving_buffers.py"), way, *chosen], env=clean_environment(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    found = {line["case"]: line for line in map(json.loads, filter(lambda text: text.startswith("{"), done.stdout.splitlines()))}
    assert len(found) == len(chosen) or len(found) > 20, done.stderr[-2000:]
    return found


@functools.cache
def plain(way):
    return run(way, {})


def difference(name, expected, found, may_run_out):
    """What is wrong; None: nothing."""
    if "error" in found:
        if "error" in expected and not found["error"].startswith("OutOfMemoryError"):
            return None if found["error"][:60] == expected["error"][:60] else found["error"]
        return None if found["error"].startswith("OutOfMemoryError") and (may_run_out or name in MAY_RUN_OUT or "error" in expected) else found["error"]
    if "error" in expected:
        return f"goes on where plain has {expected['error']}"
    if len(found["gave"]) < 5:
        return "gave nothing"
    for number, (a, b) in enumerate(zip(expected["gave"], found["gave"])):
        a, b = numpy.array(a), numpy.array(b)
        if a.shape != b.shape or not numpy.allclose(a, b, rtol=1e-5 if name in SINGLE else 1e-10, atol=1e-6 if name in SINGLE else 1e-12):
            return f"number {number} is wrong: {b.tolist()[:4]}, plain {a.tolist()[:4]}"
    return None


@pytest.mark.parametrize(("way", "limits"), [
    ("free", {"KOILA_MICROBATCH": "1"}), ("large", {"KOILA_CPU_MEMORY": "70MiB"}), ("large", {"KOILA_CPU_MEMORY": "69MiB", "KOILA_LADDER": "0,1"}),
    ("forward:1", {"KOILA_LADDER": "1"}), ("forward:2", {"KOILA_LADDER": "1"}), ("backward:1", {"KOILA_LADDER": "1"}), ("backward:7", {"KOILA_LADDER": "1"})],
    ids=lambda value: value if isinstance(value, str) else " ".join(value.values()))
def test_what_gradients_read(way, limits):
    found = run(way, koila_environment("rescue", KOILA_LOG="off", **limits))
    # One step is enough where an allocation fails: what comes after is split from its first operator on.
    expected = plain("large" if way == "large" else "free")
    wrong = {name: difference(name, expected[name], found.get(name, {"error": "nothing"}), way == "large") for name in expected}
    wrong = {name: what for name, what in wrong.items() if what}
    assert not wrong, f"{len(wrong)} of {len(expected)}: {wrong}"
    assert "gave" in found["functional calls"] or way == "large"
