"""Half of the operators and modules of PyTorch's databases by turns of the day, two samples of each: the first, and one that the day picks.
KOILA_TESTS=full takes both halves, scripts/conformance all samples."""

import datetime
import os
import re
import zlib
from pathlib import Path

import pytest

import calls
import check
import driver
import table

SHARDS = 8
SEED = os.environ.get("KOILA_TESTS_SEED", str(datetime.date.today()))
TAKEN = range(SHARDS) if os.environ.get("KOILA_TESTS") == "full" else range(zlib.crc32(SEED.encode()) % 2, SHARDS, 2)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"


def describe(found):
    return "\n".join(f"{f.outcome}: {f.call}: {f.detail}" for f in found[:20])


@pytest.mark.parametrize("shard", TAKEN)
def test_no_call_is_wrong(shard):
    found = driver.run(list(driver.orders(at_most=2, seed=SEED))[shard::SHARDS], jobs=1)
    summary = table.Summary(found)
    assert not summary.violations, f"seed {SEED}\n{describe(summary.violations)}"
    assert not summary.refused, f"seed {SEED}\n{describe(summary.refused)}"
    assert summary.counts["split"] > 100
    assert sum(o.splits for o in summary.separable) >= 0.9 * len(summary.separable), summary.text()


def test_the_table_shows_no_violation():
    text = DOCUMENT.read_text()
    assert "Wrong: 0. Crashed: 0." in text
    share = re.search(r"of these split \(([0-9.]+)%\)", text)
    assert float(share[1]) >= 95


def call_of(function, tensors, name="made up"):
    return calls.Call(name, "", tensors[0].dtype, 0, function, tensors)


def test_rows_that_depend_on_one_another_are_told():
    import torch
    x = torch.randn(5, 3, dtype=torch.float64)
    for function, independent in [(torch.exp, True), (lambda t: t.sum(0), True), (lambda t: t.softmax(0), False), (lambda t: t.softmax(1), True),
                                  (lambda t: t.flip(0), False), (lambda t: t - t.mean(0), False)]:
        call = call_of(lambda tensors, f=function: f(tensors[0]), [x])
        assert calls.separable(call, [0], calls.outputs(function(x))) == independent


@pytest.mark.parametrize("spoil", ["value", "gradient", "shape", "infinity"])
def test_a_difference_is_seen(spoil):
    import torch
    one, other = ([torch.ones(4, 2, dtype=torch.float64)] for _ in range(2))
    if spoil == "shape":
        other = [torch.ones(2, 4, dtype=torch.float64)]
    elif spoil == "infinity":
        other[0][1, 1] = torch.inf
    else:
        other[0][1, 1] += 1e-8
    good = [torch.ones(1, dtype=torch.float64)]
    if spoil == "gradient":
        runs = check.Run(good, one, []), check.Run(good, other, [])
    else:
        runs = check.Run(one, good, []), check.Run(other, good, [])
    assert check.compare(*runs, True)
    assert not check.compare(runs[0], runs[0], True)
