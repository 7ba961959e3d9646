"""How large a micro-batch koila takes, in processes that train: soon, as large as fits, back to the whole batch, and never at the cost of the numbers."""

import dataclasses
import subprocess
import sys

import pytest

from budgets import budget_of
from harness import LIBRARY, ROOT, Case, assert_equal, assert_exact_or_untouched, clean_environment, plain, run, tracked
from selection import full, only

TOLERANCE = 1e-9  # in float64, over many steps
MARGIN = 0.03  # of what is available, see runtime/size_policy.h


def sized(family, steps, **more):
    case = Case(family, "adamw", steps=steps, dtype="float64", drops=True, **more)
    return dataclasses.replace(case, rows=case.rows or case.task.budget_rows)


def at_shares(case, *schedule):
    """[(step, bytes), ...] from (step, share of plain's activations); share 0: no budget."""
    return [(step, budget_of(case, share) if share else 0) for step, share in schedule]


def checked(case, budget, **environment):
    result = run(case, "rescue", budget=budget, timeout=120, **environment)
    assert_equal(plain(case), result, TOLERANCE)
    return result


def per_step(result, column):
    """How much a total of the report grew in each step."""
    totals = [0] + [figures[column] for figures in result.figures]
    return [b - a for a, b in zip(totals, totals[1:])]


def rescues(result):
    return per_step(result, 0)


def regions(result):
    return per_step(result, 1)


def micro_batches(result):
    return [figures[2] for figures in result.figures]


def need(case, micro_batch):
    """(bytes that a known step has at its peak in fixed micro-batches, bytes that are there before it)"""
    result = run(dataclasses.replace(case, steps=5, limit_from=3), "rescue", microbatch=micro_batch)
    assert result.outcome == "ok" and result.regions > 0, result.describe()
    return result.peak, result.live[-1]


# ---- soon, and as large as fits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family, share", [("steady_mlp", 0.3), ("steady_gpt", 0.3), ("steady_cnn", 0.6)])
def test_one_rescue_and_then_the_largest_that_fits(family, share):
    case = sized(family, 11)
    budget = budget_of(case, share)
    result = checked(case, [(1, budget)])
    rescued = rescues(result)
    assert rescued[0] > 0 and not any(rescued[1:]), rescued
    sizes = micro_batches(result)
    assert len(set(sizes[4:])) == 1, sizes

    # Only sizes that save a pass count: of as many passes the smallest.
    size = sizes[-1]
    passes = -(-case.rows // size)
    assert size == -(-case.rows // passes)
    larger = -(-case.rows // (passes - 1))
    peak, standing = need(case, size)
    assert peak <= budget
    peak, standing = need(case, larger) if larger < case.rows else (tracked(case).stepping, standing)
    assert peak > budget - MARGIN * (budget - standing), f"{larger} rows have their peak at {peak:,} B of {budget:,} B, and {size} were taken"


# ---- memory comes and goes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["steady_mlp", "steady_gpt"])
def test_whole_again_when_the_budget_is_raised(family):
    case = sized(family, 12)
    result = checked(case, at_shares(case, (1, 0.3), (6, 1.5)))
    assert all(regions(result)[:5]) and not any(regions(result)[6:]), regions(result)
    assert not any(rescues(result)[1:]), rescues(result)


@pytest.mark.parametrize("family", ["steady_mlp", "steady_gpt"])
def test_smaller_when_the_budget_is_lowered(family):
    case = sized(family, 14)
    result = checked(case, at_shares(case, (1, 0.6), (6, 0.15), (11, 0.4)))
    assert sum(rescues(result)[5:]) <= 1, rescues(result)
    before, low, after = (micro_batches(result)[step - 1] for step in (5, 10, 14))
    assert low < after < before, micro_batches(result)


def test_another_consumer():
    case = sized("holds_a_tensor", 13)
    budget = budget_of(dataclasses.replace(case, family="steady_mlp"), 0.7)
    result = checked(case, [(1, budget)])
    before, during, after = (micro_batches(result)[step - 1] for step in (4, 8, 13))
    assert during < before == after, micro_batches(result)
    assert sum(rescues(result)[1:]) <= 1, rescues(result)


def test_a_budget_that_changes_before_every_step():
    case = sized("steady_mlp", 24)
    shares = [0.3, 0.9, 0.15, 0.5, 0, 0.2, 0.7, 0.12]
    result = checked(case, at_shares(case, *((step, shares[step % len(shares)]) for step in range(1, 25))))
    # What has been learnt by the first turn holds in the later ones.
    assert sum(rescues(result)[8:]) <= 1, rescues(result)


# ---- powers of two -----------------------------------------------------------------------------------------------------------


def test_powers_of_two():
    case = sized("steady_mlp", 18, rows=1000)
    schedule = at_shares(case, (1, 0.7), (5, 0.4), (9, 0.15), (13, 0.4))
    powers = {2 ** i for i in range(10)}
    result = checked(case, schedule, KOILA_POLICY="pow2")
    assert set(micro_batches(result)) <= powers, micro_batches(result)
    assert len(set(micro_batches(result))) > 2
    assert not set(micro_batches(checked(case, schedule))) <= powers, "the model takes powers of two as well: the test is worth nothing"


# ---- steps of several kinds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", only(["mixed", "gan", "changing_batch"], ["alternating", "mixed", "gan", "networks_on_two_batches", "changing_batch", "evaluation"]))
def test_steps_of_several_kinds(family):
    case = sized(family, 16)
    result = checked(case, at_shares(case, (1, 0.4), (5, 0.8), (9, 0.25), (13, 0.5)))
    assert sum(regions(result)) > 8, regions(result)


# ---- faults ------------------------------------------------------------------------------------------------------------------


SHORT = 0  # the seed of the quick run
SEEDS = only([SHORT], range(7))


def steps(seed):
    return 150 if seed == SHORT else 500


def faulty(family, steps):
    return Case(family, "adamw", steps=steps, rows=16, dtype="float64")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family, rate", [("retried_mlp", 0.02), ("retried_gpt", 0.002)])
def test_random_faults_and_a_program_that_tries_again(family, rate, seed):
    case = faulty(family, steps(seed))
    result = run(case, "rescue", inject=f"passes:random:{rate}:{seed}", timeout=300)
    assert_equal(plain(case), result, TOLERANCE)
    assert result.rescued > steps(seed) // 10


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults(seed):
    case = faulty("steady_mlp", steps(seed))
    assert_equal(plain(case), run(case, "rescue", inject=f"passes:random:0.02:{seed}", timeout=300), TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults_anywhere(seed):
    case = faulty("steady_mlp", steps(seed))
    assert_equal(plain(case), run(case, "rescue", inject=f"random:0.02:{seed}", timeout=300), TOLERANCE)


# ---- no end of trying --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["steady_mlp", "steady_gpt"])
def test_no_row_fits(family):
    case = sized(family, 1)
    whole, row = tracked(case), tracked(dataclasses.replace(case, rows=1))
    budget = whole.loading + (row.stepping - row.loading) // 4
    result = run(case, "rescue", budget=budget, KOILA_LADDER="0,1")
    outcome = assert_exact_or_untouched(plain(case), lambda: run(case, "track", budget=budget), result, TOLERANCE)
    assert outcome == "refused", result.report
    # One pass at each power of two, and each of them fails.
    halvings = case.rows.bit_length()
    assert result.report["regions_total"]["runs"] <= 4 * halvings, result.report["regions_total"]
    assert result.requests <= 4 * halvings * whole.allocations[0], f"{result.requests} allocations, plain {whole.allocations[0]} a step"


# ---- for long ----------------------------------------------------------------------------------------------------------------


@full
def test_a_short_soak():
    """scripts/soak takes ten thousand steps."""
    command = [sys.executable, str(ROOT / "scripts" / "lib" / "soak.py"), "--steps", "300"]
    done = subprocess.run(command, env=clean_environment({"KOILA_LIBRARY": str(LIBRARY)}), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
