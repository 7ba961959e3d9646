"""Memory is enough: the numbers of plain PyTorch to the bit, and its memory to one per cent."""

import pytest

from harness import OF_TORCH, Case, assert_equal, families, plain, run, tracked
from selection import one_in, only


@pytest.mark.parametrize("family", one_in(5, families(*OF_TORCH)))
def test_equal_to_the_bit(family):
    case = Case(family, "adamw")
    result = run(case, "rescue")
    assert_equal(plain(case), result, tolerance=0)
    assert result.rescued == 0 and result.regions == 0


# same_sizes has eleven rows of eleven numbers by design: 12 KiB, of which a per cent is one small tensor.
@pytest.mark.parametrize("family", one_in(10, [family for family in families(*OF_TORCH) if family != "same_sizes"]))
def test_memory(family):
    """At a size where activations are what counts. At a few KiB one small input that lives until the end of backward is a per cent."""
    case = Case(family, "adamw", rows=families()[family].budget_rows)
    result, expected = run(case, "rescue"), tracked(case)
    assert_equal(plain(case), result, tolerance=0)
    assert result.peak <= 1.01 * expected.peak, f"peak {result.peak:,} B, plain {expected.peak:,} B\n{result.command}"
    assert result.live[-1] <= 1.01 * expected.live[-1], f"live after steps {result.live}, plain {expected.live}\n{result.command}"


@pytest.mark.parametrize("family", one_in(10, families(*OF_TORCH)))
def test_tracking_is_plain(family):
    case = Case(family, "adamw")
    assert_equal(plain(case), tracked(case), tolerance=0)


@pytest.mark.parametrize("family", only(["gpt", "read_running_total"], ["gpt", "evaluation", "read_running_total", "moving_average", "dataloader"]))
def test_long_runs_do_not_grow(family):
    case = Case(family, "adamw", steps=40)
    result, expected = run(case, "rescue"), tracked(case)
    assert result.outcome == "ok", result.describe()
    assert result.live[-1] <= 1.01 * expected.live[-1], f"{result.live}\nplain {expected.live}"
    assert result.peak <= 1.01 * expected.peak


@pytest.mark.parametrize("family", only(["gpt", "cnn"], ["gpt", "cnn", "lstm_batch_first", "evaluation"]))
def test_long_split_runs_do_not_grow(family):
    case = Case(family, "adamw", steps=40)
    result = run(case, "rescue", microbatch=3)
    assert_equal(plain(case), result, 10 * case.tolerance)
    assert result.live[-1] <= 1.01 * max(result.live[3:6]), result.live
