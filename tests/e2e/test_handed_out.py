"""No kernel sees a tensor without a value, and no program sees koila's word for one: budgets, and allocations that fail here and there, under every ladder."""

import dataclasses
import subprocess
import sys

import pytest

import harness
from harness import Case, assert_equal, assert_recorded, plain, run, tracked
from selection import one_in, only

FAMILIES = harness.families("handed_out")
LADDERS = {"all": "0,1,2", "cuda": "0,1", "split": "1"}


def check(case, result):
    """Exact; or the program's own error, with plain's values up to there."""
    if result.outcome == "ok":
        assert_equal(plain(case), result, case.tolerance)
    else:
        # TorchScript hands every error on as a RuntimeError that quotes it.
        quoted = case.task.wraps_errors and result.outcome == "error" and "RuntimeError: CPU out of memory" in result.message
        assert result.outcome == "oom" or quoted, result.describe()
        assert_recorded(plain(case), result, case.tolerance, result.describe())


def case_of(family):
    return Case(family, "sgd", steps=3, rows=FAMILIES[family].budget_rows, dtype="float64")


@pytest.mark.parametrize("ladder", only(list(LADDERS)[:1], LADDERS))
@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_budgets(family, ladder):
    case = case_of(family)
    whole = tracked(case)
    for share in (0.95, 0.85, 0.75, 0.65, 0.55, 0.45, 0.35, 0.25):
        budget = int(whole.fixed + (whole.peak - whole.fixed) * share)
        check(case, run(case, "rescue", budget=budget, KOILA_LADDER=LADDERS[ladder]))


@pytest.mark.parametrize("ladder", only(list(LADDERS)[:1], LADDERS))
@pytest.mark.parametrize("family", one_in(3, FAMILIES))
def test_failures_here_and_there(family, ladder):
    case = case_of(family)
    for seed in range(10):
        check(case, run(case, "rescue", inject=f"passes:random:0.05:{seed}", KOILA_LADDER=LADDERS[ladder]))


@pytest.mark.parametrize("family", only(["scripted_net"], ("scripted_net", "message_passing", "messages_into_few_nodes")))
def test_each_allocation_of_the_second_step(family):
    """TorchScript runs its own graph from then on."""
    case = dataclasses.replace(case_of(family), limit_from=2)
    for number in range(1, 31):
        check(case_of(family), run(case, "rescue", inject=f"nth:{number}", KOILA_LADDER="1"))


@pytest.mark.parametrize("rows", only([7], (1, 7)))
@pytest.mark.parametrize("family", FAMILIES)
def test_micro_batch(family, rows):
    case = case_of(family)
    check(case, run(case, "rescue", microbatch=rows))


def test_siamese_net_is_served():
    """With memory from outside nothing of it is refused."""
    case = case_of("siamese_norm")
    whole = tracked(case)
    for share in (0.9, 0.7, 0.5):
        result = run(case, "rescue", budget=int(whole.fixed + (whole.peak - whole.fixed) * share))
        assert_equal(plain(case), result, case.tolerance)


@pytest.mark.parametrize("number", (41, 43, 47))
def test_a_view_of_what_was_printed(number):
    """What a conversion makes anew has no data yet, though the program has looked at the old: its views are split like others."""
    fuzz = harness.ROOT / "tests" / "fuzz"
    environment = harness.clean_environment(harness.koila_environment("lazy", KOILA_LADDER="1", KOILA_INJECT_OOM=f"nth:{number}")) | {"PYTHONPATH": str(fuzz)}
    done = subprocess.run([sys.executable, fuzz / "corpus" / "view_of_what_was_read_and_made_anew.py"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "rescued" in done.stderr and "refused" not in done.stderr, done.stdout + done.stderr[-2000:]
