"""KOILA_MODE=lazy: a step that nobody knows yet is sized from two rows that run alongside the program, and nothing has to run out of memory first."""

import pytest

from budgets import budget_of, refused_run
from harness import Case, assert_equal, assert_exact_or_untouched, families, in_another_order, koila_environment, plain, run
from selection import in_full, only
from test_dropout import run as run_with_dropout

SHARES = [0.15, 0.4, 2.0]
# Nothing in these is larger than what two rows tell of.
FORESEEN = ["mlp", "cnn", "gpt", "lstm_batch_first", "two_towers", "encoder_decoder"]
IN_STAGES = ["batch_norm", "batch_norm_res_net"]
MISLEADING = [*families("guesses"), "lstm_time_major", "same_sizes"]


def limited(family, share):
    task = families("guesses").get(family) or families()[family]
    case = Case(family, "adamw", rows=task.budget_rows, steps=3, drops=True, dtype="float64" if family in families("stages") else "float32")
    return case, budget_of(case, share)


@pytest.mark.parametrize("share", only(SHARES[:1], SHARES))
@pytest.mark.parametrize("family", FORESEEN)
def test_nothing_runs_out(family, share):
    case, budget = limited(family, share)
    result = run(case, "lazy", budget=budget)
    assert_equal(plain(case), result, case.tolerance, in_another_order(case))
    assert result.report["oom_events"] == []
    assert result.peak <= budget
    assert result.regions > 0


@pytest.mark.parametrize("family", ["mlp", "gpt"])
def test_it_would_run_out(family):
    """The test above is worth something."""
    case, budget = limited(family, 0.15)
    assert run(case, "rescue", budget=budget).report["oom_events"]


@pytest.mark.parametrize("share", only(SHARES[:1], SHARES))
@pytest.mark.parametrize("family", IN_STAGES)
def test_stages(family, share):
    case, budget = limited(family, share)
    assert_equal(plain(case), run(case, "lazy", budget=budget), case.tolerance, in_another_order(case))


@pytest.mark.parametrize("share", only(SHARES[:1], SHARES))
@pytest.mark.parametrize("family", MISLEADING)
def test_wrong_guesses(family, share):
    case, budget = limited(family, share)
    result = run(case, "lazy", budget=budget)
    outcome = assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance, in_another_order(case))
    assert outcome == "exact" or share < 1


@pytest.mark.parametrize("how, limit", [("plain", "900KiB"), in_full(("checkpoint", "1400KiB")), in_full(("plain", "8MiB"))])
def test_one_set_of_masks(how, limit):
    found = run_with_dropout(how, {**koila_environment("lazy"), "KOILA_CPU_MEMORY": limit})
    assert found["outcome"] == "ok"
    assert all(off < 1e-4 for off in found["off"]), found
