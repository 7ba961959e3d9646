"""Every family, split into micro-batches that do not divide its batch: the numbers of plain PyTorch."""

import pytest

from harness import Case, assert_equal, families, plain, run
from selection import one_in, only

FAMILIES = families("models", "styles", "coupled")


def check(case, rows):
    result = run(case, "rescue", microbatch=rows)
    assert_equal(plain(case), result, case.tolerance)
    if case.task.splits:
        assert result.regions > 0, f"nothing was split: {result.report}\n{result.command}"


@pytest.mark.parametrize("optimizer", only(["adamw"], ["sgd", "adamw"]))
@pytest.mark.parametrize("rows", only([3], [1, 3, 7]))
@pytest.mark.parametrize("family", FAMILIES)
def test_micro_batch(family, rows, optimizer):
    check(Case(family, optimizer), rows)


@pytest.mark.parametrize("family", one_in(6, FAMILIES))
def test_double(family):
    """In float64 the tolerance is 1e-11, far below what a wrong divisor or a forgotten row could hide under."""
    check(Case(family, "adamw", dtype="float64"), 3)


@pytest.mark.parametrize("rows", only([12], [11, 12, 1000]))
@pytest.mark.parametrize("family", ["mlp", "gpt", "cnn"])
def test_micro_batch_as_large_as_the_batch(family, rows):
    case = Case(family)
    assert_equal(plain(case), run(case, "rescue", microbatch=rows), case.tolerance)


@pytest.mark.parametrize("family", ["mlp", "gpt", "cnn", "lstm_batch_first"])
def test_batch_of_one(family):
    case = Case(family, rows=1)
    assert_equal(plain(case), run(case, "rescue", microbatch=1), case.tolerance)
