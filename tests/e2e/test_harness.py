"""The measuring tool itself: it sees what is wrong, and plain PyTorch passes it."""

import copy
import dataclasses

import numpy
import pytest

from harness import OF_TORCH, Case, assert_equal, assert_exact_or_untouched, differences, families, plain, run, tracked
from selection import one_in, only


def test_same_run_twice_is_equal_to_the_bit():
    assert differences(plain(Case("gpt")).arrays, run(Case("gpt")).arrays, tolerance=0) == []


@pytest.mark.parametrize("optimizer", only(["adamw"], ["sgd", "adamw"]))
@pytest.mark.parametrize("family", one_in(20, [name for name, task in families(*OF_TORCH).items() if task.symmetric]))
def test_order_of_rows_is_within_the_tolerance(family, optimizer):
    """The rows of every batch in another order: the same numbers up to rounding. So the tolerance is above plain's own noise."""
    if family in families("stages"):
        pytest.skip("amplifies rounding: in single precision it is held against plain's own spread (test_stages)")
    case = Case(family, optimizer)
    assert_equal(plain(case), run(Case(family, optimizer, shuffle=True)), case.tolerance)


@pytest.mark.parametrize("dtype", ["float64"])
@pytest.mark.parametrize("family", one_in(20, [name for name, task in families(*OF_TORCH).items() if task.symmetric]))
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


def test_noise_excuses_only_what_is_noisy():
    good = plain(Case("mlp"))
    arrays, name, other = good.arrays, "step3/gradient/0.weight", "step3/gradient/2.weight"

    def off(name, by):
        return dataclasses.replace(good, arrays={**arrays, name: arrays[name] * numpy.float32(1 + by)})

    assert_equal(good, off(name, 1.5e-4), noise=lambda: off(name, 1e-4))
    for bad, noise in ((off(name, 2.5e-4), off(name, 1e-4)), (off(other, 1e-4), off(name, 1e-4)), (off(name, 1e-4), good),
                       (dataclasses.replace(good, arrays={**arrays, name: None}), off(name, 1e-4))):
        with pytest.raises(AssertionError):
            assert_equal(good, bad, noise=lambda noise=noise: noise)


def test_another_seed_is_another_run():
    assert len(differences(plain(Case("mlp")).arrays, run(Case("mlp", seed=1)).arrays)) > 20


# ---- exact or untouched: the runs of plain PyTorch under a limit play koila ----------------------------------------------------


REFUSED = Case("cnn", "adamw", steps=2, rows=5)


def failing(step, share):
    """A plain run that fails in a step, a share of its allocations in."""
    first = tracked(dataclasses.replace(REFUSED, limit_from=step))
    before = tracked(REFUSED).allocations[step - 1] - first.allocations[0]
    result = run(REFUSED, "track", inject=f"nth:{before + int(share * first.allocations[0])}")
    assert result.outcome == "oom" and result.step == step
    return result


def as_if_rescued(result):
    result = copy.deepcopy(result)
    result.report["oom_events"] = [{"outcome": "rescued", "count": 1}]
    return result


def holds(actual, refused):
    return assert_exact_or_untouched(plain(REFUSED), lambda: refused, actual, REFUSED.tolerance)


@pytest.mark.parametrize("share", [0.02, 0.15, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("step", [1, 2])
def test_refusal_after_a_rescue_leaves_the_state_of_some_plain_error(step, share):
    actual = as_if_rescued(failing(step, share))
    assert holds(actual, failing(1, 0.01)) == "refused"
    # Rounding of the steps before is let through, and nothing above it.
    rounded = copy.deepcopy(actual)
    for name, array in rounded.arrays.items():
        if array is not None and array.dtype.kind == "f":
            rounded.arrays[name] = array * array.dtype.type(1 + 1e-6)
    assert holds(rounded, failing(1, 0.01)) == "refused"


def wrong_states(result):
    """(what is wrong, the arrays of `result` with it), one thing in each."""
    for name in ("final/parameter/conv1.weight", "final/parameter/fc.bias", "final/optimizer/exp_avg/fc.weight", "final/gradient/conv2.bias",
                 "step1/loss", "step1/gradient/conv1.weight"):
        if result.arrays.get(name) is not None:
            yield f"{name} off", {**result.arrays, name: result.arrays[name] * numpy.float32(1.001)}
            yield f"{name} missing", {key: array for key, array in result.arrays.items() if key != name}
            yield f"{name} None", {**result.arrays, name: None}
    generator = result.arrays["final/generator"].copy()
    generator[100] ^= 1
    yield "generator", {**result.arrays, "final/generator": generator}
    # The gradients of one step with the parameters of the next: a step of the optimizer too many, or one too few.
    whole = plain(REFUSED).arrays
    yield "parameters of the end", {key: whole[key] if key.startswith("final/parameter/") else array for key, array in result.arrays.items()}
    yield "a record too many", {**result.arrays, f"step{result.step}/loss": whole["step2/loss"] * numpy.float32(1.01)}


@pytest.mark.parametrize("rescued", [True, False])
def test_refusal_with_a_wrong_state_is_found(rescued):
    good = failing(2, 0.2)
    refused = failing(1, 0.1) if rescued else good
    good = as_if_rescued(good) if rescued else good
    assert holds(good, refused) == "refused"
    for what, arrays in wrong_states(good):
        bad = dataclasses.replace(good, arrays=arrays)
        with pytest.raises(AssertionError):
            holds(bad, refused)
            print(what, "was let through")


def test_refusal_with_another_error_is_found():
    good = failing(2, 0.2)
    for message in (good.message.replace("Tried to allocate", "Could not have"), "out of memory",
                    "CPU out of memory. Tried to allocate 12.3 GiB (made to fail by KOILA_INJECT_OOM); 1.0 KiB are in use."):
        with pytest.raises(AssertionError):
            holds(dataclasses.replace(good, message=message), good)
    more = dataclasses.replace(good, message=good.message.replace("; ", "; 1"))  # in use: koila may hold something
    assert more.message != good.message and holds(more, good) == "refused"
    with pytest.raises(AssertionError, match="in step 1, plain in step 2"):
        holds(failing(1, 0.2), good)
    with pytest.raises(AssertionError, match="not before step 2"):
        holds(as_if_rescued(failing(1, 0.2)), good)
    with pytest.raises(AssertionError, match="what plain PyTorch can do"):
        holds(good, plain(REFUSED))
