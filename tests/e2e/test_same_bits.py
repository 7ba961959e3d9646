"""The same command gives the same bits twice, on a busy machine as on an idle one: no clock has a say in the size of micro-batches, unless KOILA_POLICY=fastest asks for it."""

import json
import shutil
import subprocess
import sys

import pytest

from harness import HERE, clean_environment, koila_environment

STEADY, FASTER, SLOWER = "0:0", "150:0", "0:150"  # milliseconds, see same_bits_steps.py
PROGRAM = [sys.executable, str(HERE / "same_bits_steps.py")]


def start(*families, pauses=STEADY, threads=1, **more):
    environment = koila_environment("rescue", PAUSES=pauses, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive", **more)
    return subprocess.Popen([*PROGRAM, *families], env=clean_environment(environment), stdout=subprocess.PIPE, text=True)


def found(process):
    """{family: what came of it}"""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return {line["family"]: line for line in map(json.loads, out.splitlines())}


def run(*families, **more):
    return found(start(*families, **more))


def sizes(line):
    return [micro_batch for _, _, micro_batch, _, _ in line["done"]]


@pytest.fixture(scope="module")
def steady():
    lines = run()
    for line in lines.values():
        rescues = [done[0] for done in line["done"]]
        assert rescues[1] > rescues[0], f"nothing ran out: {line}"
    return lines


@pytest.mark.parametrize("pauses", [FASTER, SLOWER], ids=["faster and faster", "slower and slower"])
def test_the_clock_has_no_say(steady, pauses):
    assert run(pauses=pauses) == steady


def test_beside_a_busy_loop():
    """With two threads and the machine's cores taken. Plain PyTorch's kernels are the same twice then."""
    alone = run(threads=2)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        assert run(threads=2) == alone
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_the_fastest_size_is_asked_for(steady):
    """The more it is tried the less time a step takes, so it seems: the search goes on to one row."""
    line = run("mlp", pauses=FASTER, KOILA_POLICY="fastest")["mlp"]
    assert min(sizes(line)) < min(sizes(steady["mlp"])[1:]) // 2, sizes(line)
    back = run("mlp", pauses=SLOWER, KOILA_POLICY="fastest")["mlp"]
    assert sizes(back)[-1] == max(sizes(back)[2:]) > min(sizes(back)[2:]), f"it tried less than the most, and came back: {sizes(back)}"


def choices(cache, timed):
    return [[choice for choice in step["choices"] if choice["timed"] is timed] for step in json.loads(cache.read_text())["steps"]]


def test_a_cache_of_the_fastest_size(tmp_path, steady):
    """What the file says of memory is used by default too. The size that the clock has settled on is not used; it stays in the file for the next run under `fastest`."""
    cache, settled, without = tmp_path / "cache.json", tmp_path / "settled.json", tmp_path / "without.json"
    run("mlp", pauses=SLOWER, STEPS="40", KOILA_POLICY="fastest", KOILA_CACHE=str(settled))
    assert any(choices(settled, True)) and not any(choices(settled, False)), settled.read_text()
    content = json.loads(settled.read_text())
    for step in content["steps"]:
        step["choices"] = [choice | {"rows": 3} for choice in step["choices"]]
        step["observations"] = [seen | {"seconds": seen["rows"]} for seen in step["observations"]]
    settled.write_text(json.dumps(content))
    for step in content["steps"]:
        step["choices"] = []
        step["observations"] = [seen | {"seconds": 0} for seen in step["observations"]]
    without.write_text(json.dumps(content))

    def from_a_copy(of, **more):
        shutil.copy(of, cache)
        return run("mlp", KOILA_CACHE=str(cache), **more)

    first = from_a_copy(settled)
    assert first["mlp"]["done"][-1][0] == 0, "with what the file knows nothing is rescued"
    assert 3 not in sizes(first["mlp"]), sizes(first["mlp"])
    assert from_a_copy(settled, pauses=FASTER) == first
    assert any(choices(cache, True)), "the fastest process's sizes stay in the file"
    assert any(choices(cache, False))
    assert from_a_copy(without) == first
    assert 3 in sizes(from_a_copy(settled, KOILA_POLICY="fastest")["mlp"])
