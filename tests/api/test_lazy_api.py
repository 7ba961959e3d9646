"""koila::lazy as a LibTorch program and a Python program use it: what is named is split before anything runs out, and the numbers are plain's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KOILA_BUILD", ROOT / "build"))
PRELOAD = Path(os.environ.get("KOILA_LIBRARY", BUILD / "lib" / "libkoila.so"))
PROGRAM = BUILD / "tests" / "api" / "lazy_program"
STEPS = Path(__file__).resolve().parent / "lazy_steps.py"
BUDGET = 9 << 20  # bytes; parameters and gradients take four MiB of them, and activations another ten


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KOILA_") and name != "LD_PRELOAD"}
    return kept | {"OMP_NUM_THREADS": "1"} | variables


@pytest.fixture
def train(tmp_path):
    """Runs the program: what it computed (None: it ran out of memory), koila's report, and stderr."""

    def run(how, budget=0, mode="rescue", preload=True, **more):
        report, out = tmp_path / "report.json", tmp_path / "out"
        variables = {"LD_PRELOAD": str(PRELOAD), "KOILA_MODE": mode, "KOILA_REPORT": str(report), "KOILA_RECORD": "off"} if preload else {}
        if budget:
            variables["KOILA_CPU_MEMORY"] = f"{budget}B"
        done = subprocess.run([PROGRAM, how, out], env=environment(**variables, **more), capture_output=True, text=True, timeout=300)
        assert done.returncode in (0, 3), done.stderr
        found = numpy.fromfile(out, dtype=numpy.float32) if done.returncode == 0 else None
        return found, json.loads(report.read_text()) if preload and report.exists() else None, done.stderr

    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    out = tmp_path_factory.mktemp("plain") / "out"
    subprocess.run([PROGRAM, "plain", out], env=environment(), check=True, timeout=300)
    return numpy.fromfile(out, dtype=numpy.float32)


def assert_close(expected, found):
    assert found is not None and expected.shape == found.shape
    assert numpy.abs(expected - found).max() <= 1e-5 * numpy.abs(expected).max()


@pytest.mark.parametrize("mode", ["rescue", "lazy"])
@pytest.mark.parametrize("how", ["inputs", "both"])
def test_nothing_runs_out(train, plain, how, mode):
    found, report, _ = train(how, BUDGET, mode)
    assert_close(plain, found)
    assert report["oom_events"] == [] and report["regions_total"]["count"] == 3
    assert report["devices"]["cpu"]["peak_bytes"] <= BUDGET


def test_it_would_run_out(train, plain):
    assert train("plain", BUDGET, "track")[0] is None
    assert train("both", BUDGET, "track")[0] is None
    found, report, _ = train("plain", BUDGET)
    assert_close(plain, found)
    assert report["oom_events"]


def test_so_many_rows_by_hand(train, plain):
    found, report, _ = train("by_hand")
    assert_close(plain, found)
    assert report["micro_batch"] == 300 and report["oom_events"] == []


def test_another_thread(train, plain):
    found, report, _ = train("elsewhere", BUDGET)
    assert_close(plain, found)
    assert report["regions_total"]["count"] > 0


def test_without_koila(train, plain):
    found, _, said = train("both", preload=False)
    assert (found == plain).all()
    assert said.count("koila is not in this process") == 1


@pytest.mark.parametrize("mode", ["off", "track", "rescue"])
def test_nothing_to_do(train, plain, mode):
    """Nothing that rescues, or nothing to size by."""
    found, report, said = train("both", mode=mode)
    assert (found == plain).all()
    assert "koila::lazy" not in said
    assert mode != "rescue" or any("koila::lazy: a step ran whole" in note for note in report["notes"])


@pytest.mark.parametrize("spec", ["nth:{}", "every:{}"])
def test_it_fails_at_an_allocation(train, plain, spec):
    for number in (3, 12, 17, 29, 41, 60, 83, 110):
        found, report, _ = train("both", 1 << 30, KOILA_INJECT_OOM=spec.format(number), KOILA_LADDER="1,2")
        if found is not None:
            assert_close(plain, found)
        else:
            assert report["refused"] > 0


def scenario(name, **variables):
    done = subprocess.run([sys.executable, STEPS, name], capture_output=True, text=True, timeout=300,
                          env=environment(LD_PRELOAD=str(PRELOAD), KOILA_REPORT="off", KOILA_RECORD="off", **variables))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}


@pytest.mark.parametrize("mode", ["rescue", "lazy"])
@pytest.mark.parametrize("name", ["twice", "other_threads", "evaluation", "unused", "gradient_of_the_input", "result_of_the_step", "two_models_of_one_batch",
                                  "two_inputs_at_two_times"])
def test_split(name, mode):
    said = scenario(name, KOILA_MODE=mode)
    assert said["ran_out"] == 0 and said["regions"] > 0, said


@pytest.mark.parametrize("name", ["errors", "no_budget"])
def test_whole(name):
    said = scenario(name)
    assert said["regions"] == 0


@pytest.mark.parametrize("name", ["not_for_koila", "resized"])
def test_not_in_the_way(name):
    assert scenario(name)["ran_out"] == 0


def test_by_hand():
    said = scenario("by_hand")
    assert said["ran_out"] == 0 and said["regions"] == 3 and said["micro_batch"] == 512
