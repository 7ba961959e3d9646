"""Several backward passes over one step come to what they do in plain PyTorch: a node frees what it has saved when it has run, and one that has saved nothing runs again."""

import functools
import json
import subprocess
import sys

import numpy
import pytest

from harness import HERE, clean_environment, koila_environment


def run(way, environment):
    done = subprocess.run([sys.executable, str(HERE / "several_passes.py"), way], env=clean_environment(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    found = {line["case"]: line for line in map(json.loads, filter(lambda text: text.startswith("{"), done.stdout.splitlines()))}
    assert len(found) > 30, done.stderr[-2000:]
    return found


@functools.cache
def plain():
    return run("free", {})


def difference(expected, found, first_step):
    """What is wrong; None: nothing."""
    if "error" in expected or "error" in found:
        return None if expected.get("error", "none")[:50] == found.get("error", "none")[:50] else f"{found.get('error', 'goes on')}, plain {expected.get('error', 'none')}"
    if len(expected["gave"]) != len(found["gave"]) and not first_step:
        return f"{len(found['gave'])} results, plain {len(expected['gave'])}"
    for number, (a, b) in enumerate(zip(expected["gave"], found["gave"])):
        if (a is None) != (b is None):
            return f"number {number} is {b}, plain {a}"
        if a is not None and not numpy.allclose(a, b, rtol=1e-10, atol=1e-12):
            return f"number {number} is wrong: {b[:4]}, plain {a[:4]}"
    return None


@pytest.mark.parametrize(("way", "limits"), [("free", {"KOILA_MICROBATCH": "1"}), ("free", {"KOILA_MICROBATCH": "4"}), ("forward:1", {"KOILA_LADDER": "1"}), ("forward:2", {"KOILA_LADDER": "0,1"})],
                         ids=lambda value: value if isinstance(value, str) else " ".join(value.values()))
def test_each_pass(way, limits):
    found = run(way, koila_environment("rescue", KOILA_LOG="off", **limits))
    # One step is enough where an allocation fails.
    wrong = {name: difference(expected, found.get(name, {"error": "nothing"}), way != "free") for name, expected in plain().items()}
    wrong = {name: what for name, what in wrong.items() if what}
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong}"
