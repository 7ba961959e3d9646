"""Operators and modules of PyTorch's databases, two samples of each: the first, and one that its name picks. The quick run takes one of eight parts,
scripts/conformance all samples."""

import re
from pathlib import Path

import pytest

import calls
import check
import driver
import table
from selection import only

SHARDS = 8
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"


def describe(found):
    return "\n".join(f"{f.outcome}: {f.call}: {f.detail}" for f in found[:20])


@pytest.mark.parametrize("shard", only([0], range(SHARDS)))
def test_no_call_is_wrong(shard):
    found = driver.run(list(driver.orders(at_most=2))[shard::SHARDS], jobs=1)
    summary = table.Summary(found)
    assert not summary.violations, describe(summary.violations)
    assert not summary.refused, describe(summary.refused)
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
