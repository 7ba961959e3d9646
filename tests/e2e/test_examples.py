"""The examples as a user runs them: with a third of the memory they die, with koila they train, and to the same numbers.

The first step is held to 1e-5. After some steps a rounding is more than a rounding: a ReLU or a maximum flips, and Adam makes a full
update of a gradient that is rounding noise. How much of that a script shows is what plain PyTorch itself shows when its sums are formed
in another order: by other kernels, and by another number of threads.
"""

import functools
import json
import subprocess
import sys

import pytest
import torch

from harness import ROOT, clean_environment, differences, koila_environment, worst
from selection import only

EXAMPLES = ["digits_cnn", "digits_mlp", "char_gpt", "text_lstm"]
STEPS = 5
STRICT = 1e-5
OTHER_ORDERS = [
    {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
    {"MKL_CBWR": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2"},
    {"MKL_CBWR": "COMPATIBLE", "DNNL_MAX_CPU_ISA": "SSE41"},
]
KINDS = ("losses", "gradients", "parameters", "buffers")


def arrays(saved):
    found = {f"losses/{i}": torch.tensor(loss, dtype=torch.float64).numpy() for i, loss in enumerate(saved["losses"])}
    for kind in ("parameters", "gradients", "buffers"):
        found.update({f"final/{kind}/{name}": tensor.numpy() for name, tensor in saved[kind].items()})
    return found


def of_kind(found, kind):
    return {name: array for name, array in found.items() if kind in name.split("/")}


class Example:
    """Runs of one script. `environment`: what koila needs for it besides."""

    def __init__(self, name, folder, environment=None):
        self.name, self.folder, self.runs = name, folder, 0
        self.environment = environment or {}
        _, self.report, self.expected = self.run(koila_environment("track"))
        _, _, self.expected_first = self.run({}, steps=1)
        self.budget = self.report["devices"]["cpu"]["peak_bytes"] // 3

    def run(self, environment, steps=STEPS):
        """(completed process, koila's report or None, the arrays that it saved or None)"""
        self.runs += 1
        saved, report = self.folder / f"{self.runs}.pt", self.folder / f"{self.runs}.json"
        if "LD_PRELOAD" in environment:
            environment = {**self.environment, **environment, "KOILA_REPORT": str(report)}
        command = [sys.executable, str(ROOT / "examples" / f"{self.name}.py"), "--steps", str(steps), "--save", str(saved)]
        process = subprocess.run(command, env=clean_environment(environment), capture_output=True, text=True, timeout=300)
        return (process, json.loads(report.read_text()) if report.exists() else None,
                arrays(torch.load(saved)) if saved.exists() else None)

    @functools.cached_property
    def tolerances(self):
        """By kind: twice the largest difference between plain runs that sum in other orders. At least STRICT."""
        others = [self.run(order)[2] for order in OTHER_ORDERS]
        return {kind: max([STRICT, *(2 * worst(of_kind(self.expected, kind), of_kind(other, kind))[0] for other in others)])
                for kind in KINDS}

    def wrong(self, found):
        """Differences after all steps, worst first, beyond what other orders of summation make of plain PyTorch."""
        return [wrong for kind in KINDS
                for wrong in differences(of_kind(self.expected, kind), of_kind(found, kind), self.tolerances[kind])]

    def wrong_first(self, found):
        """Differences of the first step's loss, gradients and buffers. Its parameters follow from the gradients."""
        return [wrong for kind in KINDS if kind != "parameters"
                for wrong in differences(of_kind(self.expected_first, kind), of_kind(found, kind), STRICT)]


@pytest.fixture(scope="module", params=only(["char_gpt"], EXAMPLES))
def example(request, tmp_path_factory):
    return Example(request.param, tmp_path_factory.mktemp(request.param))


def test_dies_without_koila(example):
    process, _, saved = example.run(koila_environment("track", KOILA_CPU_MEMORY=f"{example.budget}B"))
    assert process.returncode == 1 and saved is None
    assert "OutOfMemoryError" in process.stderr


@pytest.mark.parametrize("steps", [1, STEPS])
def test_trains_with_koila(example, steps):
    process, report, saved = example.run(koila_environment("rescue", KOILA_CPU_MEMORY=f"{example.budget}B"), steps)
    assert process.returncode == 0, process.stderr[-3000:]
    assert report["devices"]["cpu"]["peak_bytes"] <= example.budget
    assert report["rescues"] > 0 and not report["refusals"]
    wrong = example.wrong_first(saved) if steps == 1 else example.wrong(saved)
    assert not wrong, f"{wrong[:5]}; tolerances {example.tolerances}"


def test_equal_to_the_bit_with_enough_memory(example):
    process, _, saved = example.run(koila_environment("rescue"))
    assert process.returncode == 0, process.stderr[-3000:]
    assert not differences(example.expected, saved, tolerance=0)
    assert process.stderr == ""


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("rows", [50])
def test_forced_micro_batch(example, rows, steps):
    process, report, saved = example.run(koila_environment("rescue", microbatch=rows), steps)
    assert process.returncode == 0, process.stderr[-3000:]
    wrong = example.wrong_first(saved) if steps == 1 else example.wrong(saved)
    assert not wrong, f"{wrong[:5]}; tolerances {example.tolerances}"
    assert report["regions_total"]["count"] >= steps


def test_wrong_numbers_are_found(example):
    for good, wrong, tolerances in ((example.expected_first, example.wrong_first, dict.fromkeys(KINDS, STRICT)),
                                    (example.expected, example.wrong, example.tolerances)):
        assert wrong(good) == []
        for kind in ("losses", "gradients"):
            name, array = max(of_kind(good, kind).items(), key=lambda item: abs(item[1]).max())
            assert [found[1] for found in wrong({**good, name: array * array.dtype.type(1 + 3 * tolerances[kind])})] == [name]
            assert [found[1:] for found in wrong({k: v for k, v in good.items() if k != name})] == [(name, "missing")]
    # What is wrong in one step shows in the losses of those after it, which hardly depend on the order of summation.
    assert example.tolerances["losses"] < 1e-4
