"""Every family with fixed memory plus a tenth of its activations: where plain PyTorch dies, the numbers of a run without a budget."""

import dataclasses

import pytest

from budgets import budget_of, refused_run
from harness import Case, assert_equal, assert_exact_or_untouched, families, in_another_order, plain, run
from selection import one_in, only

FAMILIES = families("models", "styles")
SPLIT = [name for name, task in FAMILIES.items() if task.splits]
COUPLED = [name for name, task in families("models", "styles", "coupled").items() if not task.splits and name != "one_row"]


def sized(family, optimizer, **more):
    return Case(family, optimizer, rows=families()[family].budget_rows, **more)


@pytest.mark.parametrize("optimizer", only(["adamw"], ["sgd", "adamw"]))
@pytest.mark.parametrize("family", one_in(2, [name for name in SPLIT if name != "same_sizes"]))
def test_budget(family, optimizer):
    # Two batches at a time would take more than a tenth of the activations of most of these models.
    case = sized(family, optimizer, drops=True)
    budget = budget_of(case)
    assert run(case, "track", budget=budget).outcome == "oom", "plain PyTorch gets by: the test is worth nothing"
    result = run(case, "rescue", budget=budget)
    assert_equal(plain(case), result, case.tolerance, in_another_order(case))
    assert result.rescued > 0
    assert result.peak <= budget


@pytest.mark.parametrize("family", only(["gpt", "unet", "retain_graph"], ["mlp", "cnn", "gpt", "lstm_batch_first", "unet", "retain_graph", "evaluation"]))
def test_two_batches_at_a_time(family):
    """The loop as it is mostly written: while the next batch is drawn, nothing but the last one may be kept of the step before."""
    case = sized(family, "adamw")
    budget = budget_of(case)
    assert run(case, "track", budget=budget).outcome == "oom", "plain PyTorch gets by: the test is worth nothing"
    result = run(case, "rescue", budget=budget)
    assert_equal(plain(case), result, case.tolerance)
    assert result.rescued > 0


@pytest.mark.parametrize("share", only([0.5], [0.5, 0.25]))
@pytest.mark.parametrize("family", one_in(6, [name for name in SPLIT if name != "same_sizes"]))
def test_larger_budget(family, share):
    """The first out-of-memory comes in backward, or late in the forward."""
    case = sized(family, "adamw")
    budget = budget_of(case, share)
    assert run(case, "track", budget=budget).outcome == "oom"
    result = run(case, "rescue", budget=budget)
    if not case.task.rescued_in_backward:
        assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance)
        return
    assert_equal(plain(case), result, case.tolerance, in_another_order(case))
    assert result.rescued > 0


@pytest.mark.parametrize("share", only([0.1], [0.1, 0.6]))
@pytest.mark.parametrize("family", one_in(2, COUPLED))
def test_coupled_rows_are_exact_or_untouched(family, share):
    case = sized(family, "adamw")
    budget = budget_of(case, share)
    assert run(case, "track", budget=budget).outcome == "oom", "plain PyTorch gets by: the test is worth nothing"
    result = run(case, "rescue", budget=budget)
    assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance, in_another_order(case))


@pytest.mark.parametrize("family", one_in(5, COUPLED))
def test_coupled_rows_with_one_batch_at_a_time(family):
    """The tightest budgets."""
    case = sized(family, "adamw", drops=True)
    budget = budget_of(case)
    assert run(case, "track", budget=budget).outcome == "oom", "plain PyTorch gets by: the test is worth nothing"
    result = run(case, "rescue", budget=budget)
    assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance, in_another_order(case))


@pytest.mark.parametrize("family", ["mlp", "gpt", "cnn"])
def test_budget_that_begins_late(family):
    """Two steps without a limit, then gradients and optimizer state exist when memory runs out."""
    case = sized(family, "adamw", limit_from=3)
    budget = budget_of(case)
    result = run(case, "rescue", budget=budget)
    assert_equal(plain(case), result, case.tolerance)
    assert result.rescued > 0


@pytest.mark.parametrize("family", ["mlp", "gpt", "cnn"])
def test_known_steps_waste_nothing(family):
    """Once a step's signature is known it starts in micro-batches: the first step halves them until they fit, and there is no
    out-of-memory after it."""
    case = sized(family, "sgd", steps=8)
    budget = budget_of(case)
    result = run(case, "rescue", budget=budget)
    assert_equal(plain(case), result, case.tolerance)
    first = run(dataclasses.replace(case, steps=1), "rescue", budget=budget)
    assert result.rescued == first.rescued > 0, result.report["oom_events"]


@pytest.mark.parametrize("family", ["mlp", "gpt"])
def test_hopeless_budget_is_the_plain_error(family):
    """Less than what the parameters, gradients and one row take."""
    case = sized(family, "adamw")
    budget = 20_000
    result = run(case, "rescue", budget=budget, KOILA_LADDER="0,1")
    outcome = assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance)
    assert outcome == "refused" and any(result.reasons)
