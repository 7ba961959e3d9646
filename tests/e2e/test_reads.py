"""Steps that look at losses, outputs and hidden values in every way, at any time: they see the values of the full batch."""

import pytest

from budgets import budget_of, refused_run
from harness import Case, assert_equal, assert_exact_or_untouched, families, plain, run
from selection import one_in, only

FAMILIES = families("reads")


@pytest.mark.parametrize("rows", only([3], [1, 3, 7]))
@pytest.mark.parametrize("family", FAMILIES)
def test_micro_batch(family, rows):
    case = Case(family, "adamw")
    result = run(case, "rescue", microbatch=rows)
    assert_equal(plain(case), result, case.tolerance)
    if case.task.splits:
        assert result.regions > 0, f"nothing was split\n{result.command}"


@pytest.mark.parametrize("share", only([0.3], [0.3, 0.7]))
@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_budget(family, share):
    """What is read or kept has to fit as well, at full batch; what else there is need not."""
    case = Case(family, "sgd", rows=families()[family].budget_rows)
    budget = budget_of(case, share)
    assert run(case, "track", budget=budget).outcome == "oom", "plain PyTorch gets by: the test is worth nothing"
    result = run(case, "rescue", budget=budget)
    if case.task.splits:
        assert_equal(plain(case), result, case.tolerance)
        assert result.rescued > 0
    elif assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance) == "refused":
        assert any(result.reasons), f"no reason in the report\n{result.command}"
