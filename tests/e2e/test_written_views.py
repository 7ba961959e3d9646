"""A view that an operator outside of micro-batches writes to stays a view: its base and the other views have the plain run's values and gradients."""

import pytest

import cases
from written_views import CASES


@pytest.fixture(scope="module")
def plain():
    return cases.run("written_views.py")[0]


@pytest.mark.parametrize("more", [{"KOILA_MICROBATCH": "3"}, {"KOILA_MICROBATCH": "1"}, {"KOILA_MICROBATCH": "5", "KOILA_MODE": "lazy"}], ids=["split", "by the row", "lazy"])
def test_views_have_what_was_written(plain, more):
    assert len(plain) == 2 * len(CASES)
    found, _ = cases.run("written_views.py", KOILA_LADDER="0,1", **more)
    assert cases.differences(plain, found, 1e-12) == []
