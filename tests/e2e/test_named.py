"""torch.ops.koila.lazy: the program names the batch. Nothing is guessed, and nothing has to run out of memory first."""

import dataclasses

import pytest

from budgets import budget_of
from harness import Case, assert_equal, families, in_another_order, plain, run
from selection import one_in, only
from sweep import allocations, cases, fail_at

SHARES = [0.15, 0.4, 2.0]
# What is named of each family: the dimension of each tensor of its batch that is the batch. Labels are named as well, or not.
NAMES = {"mlp": "0", "cnn": "0,-", "gpt": "0,-", "lstm_batch_first": "0,-", "two_towers": "0,0,-", "triplet": "0", "encoder_decoder": "0"}
# KOILA_MODE=lazy takes something else for the batch (test_lazy.py).
MISLEADING = {"positions_first": "0,-", "table_first": "0", "time_first": "0", "small_batch_beside_large": "-,0,0", "lstm_time_major": "0,-", "same_sizes": "0,-"}
IN_STAGES = {"batch_norm": "0,-", "batch_norm_res_net": "0", "clip": "0"}


def named(family, dims, share):
    task = families("guesses").get(family) or families()[family]
    case = Case(family, "adamw", rows=task.budget_rows, steps=3, drops=True, dtype="float64" if family in families("stages") else "float32")
    return dataclasses.replace(case, named=dims), budget_of(case, share)


@pytest.mark.parametrize("mode", ["rescue", "lazy"])
@pytest.mark.parametrize("share", only(SHARES[:1], SHARES))
@pytest.mark.parametrize("family", one_in(3, [*NAMES, *MISLEADING]))
def test_nothing_runs_out(family, share, mode):
    case, budget = named(family, (NAMES | MISLEADING)[family], share)
    result = run(case, mode, budget=budget)
    assert_equal(plain(case), result, case.tolerance, in_another_order(case))
    # What came of a size that an earlier step's measures gave is no fault of the name: of the few prototypes' family the second step's is off by a twentieth.
    ran_out = result.report["oom_events"]
    assert not any(event["step"] == 0 for event in ran_out) if family == "small_batch_beside_large" else ran_out == []
    assert result.peak <= budget
    assert result.regions > 0


@pytest.mark.parametrize("family", only(["gpt"], ["gpt", *MISLEADING]))
def test_it_would_run_out(family):
    """The test above is worth something."""
    case, budget = named(family, "", 0.15)
    assert run(case, "rescue", budget=budget).report["oom_events"]


@pytest.mark.parametrize("mode", ["rescue", "lazy"])
@pytest.mark.parametrize("share", only(SHARES[:1], SHARES))
@pytest.mark.parametrize("family", only(["clip"], IN_STAGES))
def test_stages(family, share, mode):
    case, budget = named(family, IN_STAGES[family], share)
    assert_equal(plain(case), run(case, mode, budget=budget), case.tolerance, in_another_order(case))


@pytest.mark.parametrize("family", ["gpt", "batch_norm_res_net", "table_first"])
def test_a_wrong_name_costs_memory_only(family):
    case, budget = named(family, "1,-", 2.0)
    assert_equal(plain(case), run(case, "rescue", budget=budget), case.tolerance, in_another_order(case))


@pytest.mark.parametrize("family", ["mlp", "gpt"])
def test_untouched_where_nothing_is_sized(family):
    """No budget, or nothing that rescues: to the bit."""
    case, _ = named(family, "0", 1.0)
    assert_equal(plain(case), run(case, "rescue"), tolerance=0)
    assert_equal(plain(case), run(case, "track"), tolerance=0)


def test_whole_when_all_of_it_fits():
    """The first step is sized; the others are as if there were no koila."""
    case, budget = named("gpt", "0", 2.0)
    result = run(dataclasses.replace(case, steps=6), "rescue", budget=[(1, budget)])
    assert [regions for _, regions, _ in result.figures] == [1] * 6


@pytest.mark.parametrize("limits", [{"microbatch": 2}, {"budget": 1 << 30}], ids=["micro-batches", "budget"])
@pytest.mark.parametrize("family", ["cnn", "gpt", "batch_norm_res_net"])
def test_fail_once(family, limits):
    case, = cases([family], ["adamw"])
    case = dataclasses.replace(case, named="0")
    total = allocations(case)
    for number in range(1, total + 1, max(1, total // 20)):
        spec = f"nth:{number}"
        fail_at(case, spec, lambda: run(case, "rescue", inject=spec, KOILA_LADDER="1,2", **limits),
                lambda: run(case, "track", inject=spec, budget=limits.get("budget")))
