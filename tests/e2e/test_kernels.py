"""Kernels' own interfaces in a training step (kernels.py): exact in micro-batches and in budgets, and split or whole as they are meant to be."""

import pytest

import kernels
from budgets import budget_of
from exactness import check_budget, check_micro_batch, sizes
from harness import Case, assert_equal, families, plain, run
from selection import only
from traps import HIDDEN

FAMILIES = families("kernels")

pytestmark = pytest.mark.skipif(not kernels.STAND_INS.exists(), reason="scripts/setup --tests builds the kernels")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", only(["3"], ["1", "3", "half"]))
def test_micro_batch(family, size):
    check_micro_batch(family, 0, sizes(FAMILIES[family])[size])


@pytest.mark.parametrize("family", only([], FAMILIES))
def test_as_many_rows_as_features(family):
    check_micro_batch(family, HIDDEN, 5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", only([0.6], [0.25, 0.6]))
def test_budget(family, share):
    check_budget(Case(family, "sgd", steps=3, rows=FAMILIES[family].budget_rows, dtype="float64"), share)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_runs_whole(family):
    result = run(Case(family, "sgd", steps=2, dtype="float64"), "rescue", microbatch=3)
    assert result.outcome == "ok", result.describe()
    assert result.regions >= 2
    whole = {op["op"] for op in result.report["full_batch_ops"]}
    assert not kernels.SPLIT[family] & whole, whole
    assert kernels.WHOLE[family] <= whole, whole
    assert result.reasons == []


@pytest.mark.parametrize("family", ["streams_recorded", "weights_put_together", "flash_attention", "ctc_of_lists_one_behind_the_other"])
def test_rescued(family):
    """A step that has run out goes on, with what it has recorded of streams, of memory that weights were given, and of numbers among an operator's results."""
    case = Case(family, "sgd", steps=3, rows=4 * FAMILIES[family].budget_rows, dtype="float64")
    result = run(case, "rescue", budget=budget_of(case, 0.6))
    assert_equal(plain(case), result, case.tolerance)
    assert result.rescued and result.reasons == [], result.describe()
