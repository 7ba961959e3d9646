"""Sums over rows in bfloat16, half and complex half: micro-batches add up in single precision and round once, as plain does over the whole batch."""

import numpy
import pytest

import cases
from selection import only


@pytest.fixture(scope="module")
def plain():
    return cases.run("half_steps.py")[0]


@pytest.fixture(scope="module")
def truth():
    return cases.run("half_steps.py", "double")[0]


def arrays(said):
    assert "gave" in said, said
    gave = said["gave"] if isinstance(said["gave"], list) else [said["gave"]]
    return [(one["shape"], one["type"], numpy.array(one["values"])) for one in gave]


def ulp(name, kind, a):
    """Of the largest value in 16 bits: of bfloat16 2^-7 of its power of two, of half 2^-10."""
    largest = numpy.abs(a).max(initial=0)
    return 2.0 ** (numpy.floor(numpy.log2(largest)) - (10 if "float16" in kind and "bfloat16" not in kind or "complex" in kind else 7)) if largest else 0.0


def violations(plain, truth, found):
    worse = []
    for name in found:
        if "gave" not in plain[name]:
            if found[name] != plain[name]:
                worse.append(f"{name}: {str(found[name])[:200]}, plain {str(plain[name])[:200]}")
            continue
        if "gave" not in found[name]:
            worse.append(f"{name}: {found[name]}")
            continue
        for i, ((shape, kind, a), (_, _, t), (k_shape, k_kind, k)) in enumerate(zip(arrays(plain[name]), arrays(truth[name]), arrays(found[name]), strict=True)):
            if (shape, kind) != (k_shape, k_kind):
                worse.append(f"{name}, {i}: {k_kind} {k_shape}, plain {kind} {shape}")
                continue
            one = max(ulp(name, plain_kind(name, kind), a), 1e-30)
            own, koila, apart = (numpy.abs(p - q).max(initial=0) / one for p, q in ((a, t), (k, t), (a, k)))
            if apart > 1 and koila > 1.4 * own + 0.05:
                worse.append(f"{name}, {i}: off plain by {apart:.2f} ulp, off the truth by {koila:.2f}, plain by {own:.2f}")
    return worse


def plain_kind(name, kind):
    return "torch.float16" if name.startswith("half") else "complex" if name.startswith("complex") else "torch.bfloat16"


def test_sums(plain, truth):
    found, _ = cases.run("half_steps.py", KOILA_LADDER="0,1")
    assert len(found) > 200
    assert violations(plain, truth, found) == []


@pytest.mark.parametrize("ladder", ["1", "0,1"])
@pytest.mark.parametrize("budget", only(["200KiB"], ["200KiB", "250KiB"]))
def test_a_step_that_runs_out(plain, truth, ladder, budget):
    """The steps are made again from the tape: what is known of them says what is summed how."""
    found, log = cases.run("half_steps.py", "training", KOILA_LADDER=ladder, KOILA_CPU_MEMORY=budget)
    assert "koila: rescued" in log, log
    assert violations(plain, truth, found) == []
