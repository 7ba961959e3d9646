"""Out-of-memory at allocation N of a run: exact, or the plain error with the plain state. scripts/sweep takes every N; here a sample,
another one in each case, so that together they go through all phases."""

import pytest

from harness import assert_equal, plain, run
from sweep import allocations, cases, fail_at

SAMPLE = 45


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.family}-{case.optimizer}")
def test_fail_once(case):
    total = allocations(case)
    outcomes = [fail_at(case, f"nth:{1 + (i * total) // SAMPLE}") for i in range(SAMPLE)]
    # Forward and backward allocate most, and there is nothing in these models that could not be rescued.
    assert outcomes.count("exact") >= SAMPLE // 3, outcomes


@pytest.mark.parametrize("spec", ["every:150", "every:61", "every:17", "random:0.02:1", "random:0.02:2", "random:0.1:3"])
@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.family}-{case.optimizer}")
def test_fail_again_and_again(case, spec):
    """Out of memory within the micro-batches too."""
    fail_at(case, spec)


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.family}-{case.optimizer}")
def test_nothing_fails_beyond_the_last_allocation(case):
    assert_equal(plain(case), run(case, "rescue", inject=f"nth:{allocations(case) + 1}"), tolerance=0)
