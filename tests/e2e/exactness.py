"""What the many small families of traps.py and opaque.py are asked for: exact in micro-batches of any size; exact or plain's own error in a budget."""

from budgets import budget_of, refused_run
from harness import Case, assert_equal, assert_exact_or_untouched, first_line, plain, run


def sizes(task):
    return {"1": 1, "3": 3, "half": (task.rows + 1) // 2}


def check_micro_batch(family, rows, microbatch):
    case = Case(family, "adamw", steps=3, rows=rows, dtype="float64")
    assert_equal(plain(case), run(case, "rescue", microbatch=microbatch), case.tolerance)


def check_few_rows(family, rows):
    """What plain PyTorch makes of so few rows, an error perhaps, koila makes of it."""
    case = Case(family, "sgd", steps=3, rows=rows, dtype="float64")
    expected, actual = run(case), run(case, "rescue", microbatch=1)
    if expected.outcome == "ok":
        assert_equal(plain(case), actual, case.tolerance)
        return
    assert actual.outcome == expected.outcome, actual.describe()
    assert first_line(actual.message) == first_line(expected.message) or actual.outcome == "crash"


def check_budget(case, share):
    budget = budget_of(case, share)
    assert run(case, "track", budget=budget).outcome != "ok", "plain PyTorch gets by: the test is worth nothing"
    result = run(case, "rescue", budget=budget)
    if result.outcome == "error" and case.task.wraps_errors and "out of memory" in result.message:
        return "refused"
    return assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance)
