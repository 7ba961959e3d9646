"""Graphs, mixtures of experts and pairs: which rows meet is in an index, whose values are known when it is used."""

import pytest

from harness import Case, assert_equal, assert_exact_or_untouched, families, plain, run
from holes import budgets_of, judge
from selection import only

FAMILIES = list(families("indexed"))
# Refused at some budgets just below plain's peak: the graph of what is not split has to be made again whole, or a stage's values do not fit beside it.
WITH_HOLES = {"edges_attend", "experts_as_mixtral", "experts_by_mask", "experts_scattered"}


@pytest.mark.parametrize("rows", only([3], [1, 3, 5]))
@pytest.mark.parametrize("family", FAMILIES)
def test_micro_batches(family, rows):
    case = Case(family, steps=3, dtype="float64")
    result = run(case, "rescue", microbatch=rows)
    assert result.outcome == "ok", result.describe()
    assert_equal(plain(case), result, case.tolerance)


# A share of what plain takes beside what it holds in any case. What edges say to each other is as large as the step is, and for a moment the program holds two of these.
@pytest.mark.parametrize("share", only([0.9], [0.3, 0.45, 0.6, 0.75, 0.9]))
@pytest.mark.parametrize("family", FAMILIES)
def test_budgets(family, share):
    case = Case(family, "sgd", steps=3, rows=families("indexed")[family].budget_rows, drops=True, dtype="float64")
    outcome, why = judge(case, budgets_of(case, 99)[int(share * 100) - 1])
    assert outcome == "exact" or (outcome == "refused" and (share < 0.8 or family in WITH_HOLES)), f"{outcome}: {why}"


@pytest.mark.parametrize("inject", only(["every:17"], ["nth:40", "nth:75", "every:17", "every:41"]))
@pytest.mark.parametrize("family", FAMILIES)
def test_allocations_that_fail(family, inject):
    case = Case(family, steps=3, dtype="float64")
    result = run(case, "rescue", inject=inject, KOILA_LADDER="0,1")
    assert_exact_or_untouched(plain(case), lambda: run(case, "track", inject=inject), result, case.tolerance)
