"""The examples as a user runs them: with a third of the memory they die, with koila they train, and to the same numbers."""

import json
import subprocess
import sys

import pytest
import torch

from harness import ROOT, clean_environment, differences, koila_environment

EXAMPLES = ["digits_cnn", "digits_mlp", "char_gpt", "text_lstm"]
STEPS = 5


def run(name, folder, environment, tag):
    """(completed process, what it saved or None)"""
    saved = folder / f"{tag}.pt"
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--steps", str(STEPS), "--save", str(saved)]
    process = subprocess.run(command, env=clean_environment(environment), capture_output=True, text=True, timeout=300)
    return process, torch.load(saved) if saved.exists() else None


def arrays(saved):
    found = {f"losses/{i}": torch.tensor(loss, dtype=torch.float64).numpy() for i, loss in enumerate(saved["losses"])}
    for kind in ("parameters", "gradients", "buffers"):
        found.update({f"final/{kind}/{name}": tensor.numpy() for name, tensor in saved[kind].items()})
    return found


@pytest.fixture(scope="module", params=EXAMPLES)
def example(request, tmp_path_factory):
    """(name, folder, plain run, budget): the budget is a third of what the plain run takes at its peak."""
    folder = tmp_path_factory.mktemp(request.param)
    environment = koila_environment("track", KOILA_REPORT=str(folder / "plain.json"))
    process, saved = run(request.param, folder, environment, "plain")
    assert process.returncode == 0, process.stderr
    peak = json.loads((folder / "plain.json").read_text())["devices"]["cpu"]["peak_bytes"]
    return request.param, folder, saved, peak // 3


def test_dies_without_koila(example):
    name, folder, _, budget = example
    process, saved = run(name, folder, koila_environment("track", KOILA_CPU_MEMORY=f"{budget}B"), "dies")
    assert process.returncode == 1 and saved is None
    assert "OutOfMemoryError" in process.stderr


def test_trains_with_koila(example):
    name, folder, expected, budget = example
    report = folder / "rescued.json"
    process, saved = run(name, folder, koila_environment("rescue", KOILA_CPU_MEMORY=f"{budget}B", KOILA_REPORT=str(report)), "rescued")
    assert process.returncode == 0, process.stderr[-3000:]
    figures = json.loads(report.read_text())
    assert figures["devices"]["cpu"]["peak_bytes"] <= budget
    assert figures["rescues"] > 0 and not figures["refusals"]

    # Adam's default eps makes a full update of a gradient that is rounding noise. How much of that a script shows is measured by what
    # another number of threads does to plain PyTorch.
    _, other = run(name, folder, {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}, "threads")
    for kind, floor in (("losses", 1e-5), ("gradients", 1e-4), ("parameters", 1e-4), ("buffers", 1e-5)):
        def of_kind(saved):
            return {key: value for key, value in arrays(saved).items() if kind in key}

        noise = differences(of_kind(expected), of_kind(other), 1e-30)
        tolerance = max(floor, 10 * (noise[0][0] * 1e-30 if noise else 0))
        wrong = differences(of_kind(expected), of_kind(saved), tolerance)
        assert not wrong, f"tolerance {tolerance:.2g}: {wrong[:5]}"


def test_equal_to_the_bit_with_enough_memory(example):
    name, folder, expected, _ = example
    process, saved = run(name, folder, koila_environment("rescue"), "enough")
    assert process.returncode == 0, process.stderr[-3000:]
    assert not differences(arrays(expected), arrays(saved), tolerance=0)
    assert process.stderr == ""


@pytest.mark.parametrize("rows", [50])
def test_forced_micro_batch(example, rows):
    name, folder, expected, _ = example
    report = folder / "forced.json"
    environment = koila_environment("rescue", microbatch=rows, KOILA_REPORT=str(report))
    process, saved = run(name, folder, environment, "forced")
    assert process.returncode == 0, process.stderr[-3000:]
    wrong = differences(arrays(expected), arrays(saved), 1e-3)
    assert not wrong, wrong[:5]
    figures = json.loads(report.read_text())
    assert figures["regions_total"]["count"] >= STEPS
