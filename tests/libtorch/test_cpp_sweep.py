"""Out-of-memory at allocation N of a C++ trainer: exact, or the plain error with the plain state. tests/libtorch/cpp_sweep.py takes every N; here a sample."""

import dataclasses

import pytest
from cpp_programs import COUPLED, TRAINERS, budget_of, refused_run
from cpp_sweep import allocations, cases, fail_at

from harness import assert_equal, assert_exact_or_untouched, plain, run

SAMPLE = 20
CASES = cases(TRAINERS + COUPLED)


def name_of(case):
    return f"{case.family}-{case.optimizer}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_fail_once(case):
    total = allocations(case)
    outcomes = [fail_at(case, f"nth:{1 + (i * total) // SAMPLE}") for i in range(SAMPLE)]
    # There is nothing in these models that could not be rescued; only the first operators of a step may find nothing yet that could be split.
    assert outcomes.count("refused") <= (2 if case.family in COUPLED else 1), outcomes


@pytest.mark.parametrize("spec", ["every:61", "every:17", "random:0.02:1", "random:0.1:3"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_fail_again_and_again(case, spec):
    """Out of memory within the micro-batches too."""
    fail_at(case, spec)


@pytest.mark.parametrize("share", [0.15, 0.4, 0.8])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_budget(case, share):
    case = dataclasses.replace(case, rows=64, steps=3)
    budget = budget_of(case, share)
    assert run(case, "track", budget=budget).outcome == "oom", "the program gets by: the test is worth nothing"
    result = run(case, "rescue", budget=budget)
    outcome = assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance)
    assert outcome == "exact" and result.rescued > 0 or case.family in COUPLED, result.describe()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_micro_batch(case, rows):
    result = run(case, "rescue", microbatch=rows)
    assert_equal(plain(case), result, case.tolerance)
    assert result.regions > 0


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_nothing_fails_beyond_the_last_allocation(case):
    assert_equal(plain(case), run(case, "rescue", inject=f"nth:{allocations(case) + 1}"), tolerance=0)
