"""Results that are no dense tensors with sizes: nested, sparse, mkldnn, quantised, subclasses, functorch's wrappers. What koila cannot follow is left as it is."""

import pytest

import cases


@pytest.fixture(scope="module")
def plain():
    return cases.run("layout_steps.py")[0]


# A budget that nothing reaches; rows that are taken for the batch without one; and micro-batches wherever rows can be told apart.
SETTINGS = {"as_it_is": ({}, 0.0), "lazy": ({"KOILA_MODE": "lazy", "KOILA_CPU_MEMORY": "1GiB"}, 2e-5), "micro_batches": ({"KOILA_MICROBATCH": "2"}, 2e-5)}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_kind(plain, name):
    settings, tolerance = SETTINGS[name]
    found, log = cases.run("layout_steps.py", KOILA_LADDER="0,1", **settings)
    assert len(plain) > 200
    # 1e-5 of the largest entry; masks of dropout are drawn by the row where steps are split.
    drawn = [] if tolerance == 0 else [n for n in plain if "dropout" in n]
    assert cases.differences({n: v for n, v in plain.items() if n not in drawn}, found, tolerance) == []
    assert "refused" not in log
