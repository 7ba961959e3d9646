"""A sample of scripts/holes: every budget above one that trains, trains as well, exactly and without memory from outside."""

import pytest

from harness import families
from holes import OPTIMIZERS, cases, walk
from selection import only

# What is refused at some budgets between others that train: a value of the whole batch that is read, or asked for, in the middle of the step does not fit beside the rest.
WITH_HOLES = {"read_item", "read_clone"}
SPLIT = [name for name, task in families("models", "styles").items() if task.splits and name not in WITH_HOLES]


@pytest.mark.parametrize("optimizer", only(["sgd"], OPTIMIZERS))
@pytest.mark.parametrize("family", only(["cut_and_join", "gpt", "variational_autoencoder"], SPLIT))
def test_no_holes(family, optimizer):
    row = walk(cases([family], [optimizer])[0], 10)
    assert not row.faults and not row.holes, f"{row.picture()}: {row.faults or row.holes}"
    assert row.floor is not None
