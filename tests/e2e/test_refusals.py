"""What koila does not split: the step runs as ever, or fails with plain's error, plain's state, and a reason."""

import pytest

from budgets import budget_of, refused_run
from harness import Case, assert_equal, assert_exact_or_untouched, families, plain, run
from selection import only

FAMILIES = families("refused")


@pytest.mark.parametrize("rows", only([3], [1, 3]))
@pytest.mark.parametrize("family", FAMILIES)
def test_forced_micro_batch_changes_nothing(family, rows):
    case = Case(family, "adamw")
    assert_equal(plain(case), run(case, "rescue", microbatch=rows), case.tolerance)


@pytest.mark.parametrize("optimizer", only(["adamw"], ["sgd", "adamw"]))
@pytest.mark.parametrize("share", only([0.6], [0.1, 0.6]))
@pytest.mark.parametrize("family", FAMILIES)
def test_budget(family, share, optimizer):
    case = Case(family, optimizer, rows=families()[family].budget_rows)
    budget = budget_of(case, share)
    # The gradient of `no_batch` is next to nothing, and rounding is all of it once some of it has been split.
    ladder = {"KOILA_LADDER": "0,1"} if family == "no_batch" else {}
    result = run(case, "rescue", budget=budget, **ladder)
    if assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance) == "refused":
        assert any(result.reasons), f"no reason in the report\n{result.command}"
        assert "koila" in result.log, "nothing was logged"


@pytest.mark.parametrize("family", ["node_hook", "no_batch", "row_too_big"])
def test_is_refused_and_says_why(family):
    """Without the rung that keeps outside what cannot be split."""
    case = Case(family, "sgd", rows=families()[family].budget_rows)
    budget = budget_of(case, 0.1)
    result = run(case, "rescue", budget=budget, KOILA_LADDER="0,1")
    assert assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result) == "refused"
    assert any(result.reasons)


@pytest.mark.parametrize("rows, reason", [(1024, "KOILA_MICROBATCH asks for 1024 rows at a time, and the batch has no more (1024 rows)."), (512, "")])
def test_a_size_that_is_the_whole_batch(rows, reason):
    """Asked for in the environment, and then memory runs out in the backward pass: the size is what stands against it."""
    case = Case("mlp", "sgd", rows=families()["mlp"].budget_rows)
    budget = budget_of(case, 0.9)
    result = run(case, "rescue", budget=budget, microbatch=rows, KOILA_LADDER="0,1")
    outcome = assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result)
    assert (outcome, any(reason in given for given in result.reasons)) == (("refused", True) if reason else ("exact", False))


def test_a_write_to_a_view_of_the_batch_trains():
    """The write is made again as the program made it, on what was made again before."""
    case = Case("adds_to_a_view", "sgd", rows=families()["adds_to_a_view"].budget_rows, dtype="float64")
    budget = budget_of(case, 0.9)
    result = run(case, "rescue", budget=budget)
    assert assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result) == "exact"
    assert result.rescued


@pytest.mark.parametrize("family", ["catches_itself", "catches_and_gives_up"])
def test_program_that_handles_the_error_itself(family):
    """If koila rescues, the program never learns; if not, it goes on as it would have."""
    case = Case(family, "sgd", rows=families()[family].budget_rows)
    budget = budget_of(case, 0.3)
    result = run(case, "rescue", budget=budget)
    if result.rescued:
        assert_equal(plain(case), result, case.tolerance)
    else:
        assert_equal(run(case, "track", budget=budget), result, tolerance=0)
