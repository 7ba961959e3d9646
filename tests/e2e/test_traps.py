"""Deliberate traps (traps.py): each is exact or refused, in micro-batches of any size and in budgets, and where all sizes are the same."""

import pytest

import selection
from exactness import check_budget, check_few_rows, check_micro_batch, sizes
from harness import Case, families
from traps import HIDDEN

FAMILIES = families("traps")

# What is known to be wrong, and in which of the cases below.
HIDDEN_ROW = "one hidden row that the step made, written to between forward and backward: plain PyTorch raises, koila goes on with the old one"
BATCHED = "is_grads_batched: vmap over a region's node is an error"
KNOWN = {
    "hidden_changed_before_backward": (HIDDEN_ROW, {"one row"}),
    "gradients_of_several_outputs": (BATCHED, {"1", "3", "half", "square", "one row"}),
}


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


@pytest.mark.parametrize("family, size", cases(FAMILIES, "3", "1", "half", quick=["3"]))
def test_micro_batch(family, size):
    check_micro_batch(family, 0, sizes(FAMILIES[family])[size])


@pytest.mark.parametrize("family, size", cases([name for name, task in FAMILIES.items() if task.rows != HIDDEN], "square", quick=["square"], one_in=15))
def test_as_many_rows_as_features(family, size):
    check_micro_batch(family, HIDDEN, 5)


@pytest.mark.parametrize("family, share", cases([name for name, task in FAMILIES.items() if task.budgeted], 0.25, 0.6, quick=[0.25, 0.6], one_in=15))
def test_budget(family, share):
    check_budget(Case(family, "sgd", steps=3, rows=FAMILIES[family].budget_rows, dtype="float64"), share)


@pytest.mark.parametrize("family, size", cases(FAMILIES, "one row", quick=["one row"], one_in=15))
def test_batch_of_one(family, size):
    check_few_rows(family, 1)
