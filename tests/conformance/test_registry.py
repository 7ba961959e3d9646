"""Operators with a formula for their gradients and without a rule, of the dispatcher's own registry: each runs whole without harm, or is accounted for (registry.py)."""

import pytest

import by_hand
import driver
import registry
from selection import only

SHARDS = 4


@pytest.fixture(scope="module")
def unruled():
    _, names = driver.without_rule()
    return names


def test_each_is_called_or_accounted_for(unruled):
    """A new release of torch has new ones: tests/conformance/run.py --registry looks for samples that call them."""
    assert len(unruled) > 100
    called = registry.sources()
    left = [name for name in unruled if name not in called and not registry.out_of_reach(name)]
    assert not left, left
    twice = sorted(set(called) - set(unruled)) + sorted(name for name in called if registry.out_of_reach(name))
    assert not twice, f"has a rule, or cannot be called, and is called: {twice}"


def test_rules_are_asked_for_by_name(unruled):
    assert "aten::native_layer_norm" not in unruled and "aten::ctc_loss.IntList" not in unruled and "aten::median" in unruled
    assert "aten::relu_" not in unruled, "an in-place operator has its twin's"


@pytest.mark.parametrize("shard", only([0], range(SHARDS)))
def test_it_runs_whole_without_harm(shard):
    """With its arguments split, and with allocations that fail: plain's numbers."""
    names = sorted(registry.sources())[shard::SHARDS]
    found = driver.run(driver.kernels(names), jobs=1, KOILA_LADDER="1")
    bad = [f"{f.outcome}: {f.call}: {f.detail}" for f in found if f.outcome in ("wrong", "error", "crashed", "refused")]
    assert not bad, "\n".join(bad)
    whole = {f.order.name for f in found if f.outcome in ("whole", "random") and f.micro_batch}
    assert whole == set(names), set(names) - whole
    assert sum(f.outcome == "refused under failure" for f in found) > len(names)


def test_calls_by_hand_are_needed():
    assert not set(by_hand.CALLS) & set(registry.json.loads(registry.FILE.read_text()))
