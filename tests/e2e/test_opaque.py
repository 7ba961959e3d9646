"""What koila cannot see into (opaque.py): exact, at full batch where need be, or plain's own error."""

import pytest

import selection
from exactness import check_budget, check_micro_batch, sizes
from harness import Case, assert_equal, families, plain, run
from traps import HIDDEN

FAMILIES = families("opaque")

# What is known to be wrong, and in which of the cases below.
COMPILED = "compiled autograd cannot take a region's node, or the hook on one"
FORCED = {"1", "3", "half", "square"}
ALL = FORCED | {0.6, 0.25}
KNOWN = {
    "compiled_autograd": (COMPILED, FORCED | {0.6, 0.25}),
}

# Seconds each, and for some half a minute.
SLOW = {name for name in FAMILIES if name.startswith("compiled")}
INDUCTOR = [name for name in FAMILIES if getattr(FAMILIES[name], "slow", False)]


def cases(names, *conditions, quick=(), one_in=1):
    """(family, condition), and a mark on those that are known to fail. In the quick run: the conditions named, for one family in so many."""
    taken = [(name, condition) for name in selection.taken(one_in, names) for condition in quick]
    found = []
    for name in names:
        reason, where = KNOWN.get(name, ("", ()))
        for condition in conditions:
            marks = [pytest.mark.xfail(strict=True, reason=reason)] if condition in where else []
            marks += [] if (name, condition) in taken else [selection.full]
            found.append(pytest.param(name, condition, marks=marks, id=f"{name}-{condition}"))
    return found


@pytest.mark.parametrize("family, size", cases([name for name in FAMILIES if name not in INDUCTOR], "3", "1", "half", quick=["3"]))
def test_micro_batch(family, size):
    check_micro_batch(family, 0, sizes(FAMILIES[family])[size])


@pytest.mark.parametrize("family, size", cases([name for name in FAMILIES if name not in SLOW], "square", quick=["square"], one_in=15))
def test_as_many_rows_as_features(family, size):
    check_micro_batch(family, HIDDEN, 5)


@pytest.mark.parametrize("family, share", cases([name for name, task in FAMILIES.items() if task.budgeted and name not in INDUCTOR], 0.25, 0.6, quick=[0.25, 0.6], one_in=15))
def test_budget(family, share):
    check_budget(Case(family, "sgd", steps=3, rows=FAMILIES[family].budget_rows, dtype="float64"), share)


@selection.full
@pytest.mark.parametrize("family", INDUCTOR)
def test_inductor(family):
    """Half a minute each."""
    case = Case(family, "adamw", steps=2, dtype="float64")
    assert_equal(plain(case), run(case, "rescue", microbatch=3, timeout=300), case.tolerance)
