"""Networks with batch norm train exactly at half and at a third of plain's peak, whatever the ladder, and not a few rows at a time: see stage_budgets.py."""

import pytest

from stage_budgets import LADDERS, under

SHARES = (0.9, 0.75, 0.5, 0.35)


@pytest.mark.parametrize("ladder", LADDERS)
@pytest.mark.parametrize("network", ["cnn", "mlp", "resnet"])
def test_every_budget_trains(network, ladder):
    runs = under(ladder, "--network", network, "--shares", ",".join(map(str, SHARES)), "--steps", "6")
    assert [run["outcome"] for run in runs] == ["exact"] * len(SHARES), [run.get("why") for run in runs]


@pytest.mark.parametrize("ladder", LADDERS)
def test_boundaries_go_before_rows_do(ladder):
    # 38 convolutions: what they leave to one another used to stay, and the rows of a micro-batch to go down to one.
    runs = under(ladder, "--network", "resnet", "--shares", "0.9,0.75,0.6,0.5,0.35", "--steps", "6")
    assert all(run["rows"] >= 6 for run in runs), [run["rows"] for run in runs]
    assert ladder != "0,1" or not any(run["outside"] for run in runs)
