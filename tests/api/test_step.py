"""koila::step in a LibTorch program whose memory really runs out: with koila, with koila's rescue, and without koila."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KOILA_BUILD", ROOT / "build"))
PRELOAD = Path(os.environ.get("KOILA_LIBRARY", BUILD / "lib" / "libkoila.so"))
PROGRAM = BUILD / "tests" / "api" / "step_program"


def run(*arguments, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KOILA_") and name != "LD_PRELOAD"}
    done = subprocess.run([PROGRAM, *arguments], env=kept | {"OMP_NUM_THREADS": "1"} | variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def koila(*arguments, **variables):
    return run(*arguments, **{"LD_PRELOAD": str(PRELOAD), "KOILA_REPORT": "off", "KOILA_LOG": "error"} | variables)


def steps(text):
    """(rows of a micro-batch, figures) of each step."""
    lines = [line.split() for line in text.splitlines()]
    return [(int(line[0]), [float(figure) for figure in line[1:]]) for line in lines]


def assert_exact(text, *arguments):
    """Returns the micro-batches."""
    plain, mine = steps(run("--plain", *arguments)), steps(text)
    assert len(plain) == len(mine) == 2
    for (_, expected), (_, figures) in zip(plain, mine):
        assert figures == pytest.approx(expected, rel=1e-11)
    return [rows for rows, _ in mine]


@pytest.mark.parametrize("kind", [[], ["--separable"]])
def test_whole_where_it_fits(kind):
    assert assert_exact(run(*kind), *kind) == [32, 32]
    assert assert_exact(koila(*kind), *kind) == [32, 32]


# Parameters and their gradients take 12 MiB, and a row one.
@pytest.mark.parametrize("kind", [[], ["--separable"]])
@pytest.mark.parametrize("budget, rows", [(32, 16), (22, 8), (17, 4)])
def test_budget(kind, budget, rows):
    found = assert_exact(koila(*kind, KOILA_MODE="track", KOILA_CPU_MEMORY=f"{budget}MiB"), *kind)
    assert found[0] == found[1] <= rows


def test_koila_rescues_first():
    assert assert_exact(koila(KOILA_CPU_MEMORY="24MiB")) == [32, 32]


def test_masks_are_the_same_in_both_passes():
    """By figures that hold for any masks: the second step's masks are others than the first's."""
    found = steps(koila("--dropout", KOILA_MODE="track", KOILA_CPU_MEMORY="24MiB"))
    assert [rows for rows, _ in found] == [found[0][0]] * 2 and found[0][0] < 32
    assert found[0][1] != found[1][1]


def test_batch_norm_is_koilas_rescue_or_refused():
    assert assert_exact(koila("--batch-norm", KOILA_CPU_MEMORY="24MiB"), "--batch-norm") == [32, 32]
    refused = koila("--batch-norm", KOILA_MODE="track", KOILA_CPU_MEMORY="24MiB").splitlines()
    assert refused[0].startswith("out of memory: CPU out of memory. Tried to allocate")
    assert refused[1].startswith("koila::step cannot run this step in micro-batches: aten::batch_norm takes statistics of all rows")
    assert refused[2] == "untouched: 1 0"


@pytest.mark.parametrize("budget", ["0", "22MiB"])
@pytest.mark.parametrize("number", [1, 2, 5, 9, 14, 20])
def test_an_allocation_that_fails(number, budget):
    """Of the second step: it goes on with half the rows, wherever it is."""
    first, second = assert_exact(koila(str(number), KOILA_MODE="track", KOILA_CPU_MEMORY=budget))
    assert second < first
