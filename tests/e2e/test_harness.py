"""The measuring tool itself: it sees what is wrong, and plain PyTorch passes it."""

import numpy
import pytest

from harness import Case, assert_equal, differences, families, plain, run


def test_same_run_twice_is_equal_to_the_bit():
    assert differences(plain(Case("gpt")).arrays, run(Case("gpt")).arrays, tolerance=0) == []


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("family", [name for name, task in families().items() if task.symmetric])
def test_order_of_rows_is_within_the_tolerance(family, optimizer):
    """The rows of every batch in another order: the same numbers up to rounding. So the tolerance is above plain's own noise."""
    case = Case(family, optimizer)
    assert_equal(plain(case), run(Case(family, optimizer, shuffle=True)), case.tolerance)


@pytest.mark.parametrize("dtype", ["float64"])
@pytest.mark.parametrize("family", [name for name, task in families().items() if task.symmetric])
def test_order_of_rows_in_double(family, dtype):
    case = Case(family, "adamw", dtype=dtype)
    assert_equal(plain(case), run(Case(family, "adamw", dtype=dtype, shuffle=True)), case.tolerance)


def test_wrong_numbers_are_found():
    good = plain(Case("mlp")).arrays
    for name in ("step3/gradient/0.weight", "final/parameter/4.bias", "step5/loss"):
        bad = {k: None if v is None else v.copy() for k, v in good.items()}
        bad[name] = bad[name] * numpy.float32(1.0001)
        assert [found[1] for found in differences(good, bad)] == [name]
    bad = dict(good)
    bad["step1/gradient/0.bias"] = None
    assert differences(good, bad)[0][1:] == ("step1/gradient/0.bias", "None")
    bad = dict(good)
    del bad["step1/loss"]
    assert differences(good, bad)[0][2] == "missing"
    bad = dict(good)
    bad["step1/loss"] = numpy.float32(numpy.nan)
    assert differences(good, bad)[0][2] == "infinities or NaN differ"


def test_another_seed_is_another_run():
    assert len(differences(plain(Case("mlp")).arrays, run(Case("mlp", seed=1)).arrays)) > 20
