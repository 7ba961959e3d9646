"""The same families on "cuda": PyTorch's own caching allocator over a simulated CUDA runtime (tests/cuda), where the autograd engine runs
backward on a thread of its own."""

import dataclasses

import pytest

from harness import OF_THE_CPU, ROOT, Case, assert_equal, differences, families, plain, run, tracked
from selection import in_full, one_in, only

DEVICE = ROOT / "build" / "tests" / "cuda" / "device" / "libsim_cuda_kernels.so"
WHY_NOT = ROOT / ".cache" / "c10_cuda" / "why_not"
pytestmark = pytest.mark.skipif(
    not DEVICE.exists(), reason=f"no CUDA build of torch to take the allocator from: {WHY_NOT.read_text().strip() if WHY_NOT.exists() else 'scripts/setup --tests gets it'}")

FAMILIES = [name for name in families("models", "styles", "coupled") if name not in OF_THE_CPU]


def check(case, rows):
    result = run(case, "rescue", microbatch=rows)
    assert_equal(plain(case), result, case.tolerance)
    if case.task.splits:
        assert result.regions > 0, f"nothing was split: {result.report}\n{result.command}"


@pytest.mark.parametrize("family", one_in(5, FAMILIES))
def test_micro_batch(family):
    check(Case(family, "adamw", device="cuda"), 3)


@pytest.mark.parametrize("family", one_in(4, families("stages")))
def test_stages(family):
    case = Case(family, "adamw", dtype="float64", steps=3, device="cuda")
    assert_equal(plain(case), run(case, "rescue", microbatch=3), case.tolerance)


@pytest.mark.parametrize("share", only([0.5], [0.5, 0.3]))
@pytest.mark.parametrize("family, rows", [in_full(("batch_norm_unet", 1024)), ("batch_norm_res_net", 512)])
def test_stages_in_pinned_memory(family, rows, share):
    case = Case(family, "sgd", rows=rows, dtype="float64", steps=2, device="cuda")
    budget = int(share * tracked(case).peak)
    result = run(case, "rescue", budget=budget, timeout=200)
    assert_equal(plain(case), result, case.tolerance)
    assert result.rescued > 0 and result.peak <= budget
    device, pinned = (result.report["devices"][name] for name in ("cuda:0", "pinned"))
    assert 0 < device["outside_peak_bytes"] <= pinned["peak_bytes"] <= 1.3 * device["outside_peak_bytes"] + (1 << 20), (device, pinned)
    assert device["outside_bytes"] == 0


# Enough rows that the caching allocator, which takes 2 MiB and 20 MiB at a time, has to take some.
LARGE = {"mlp": 65536, "cnn": 4096, "gpt": 4096, "vit": 4096, "lstm_batch_first": 4096, "autocast": 8192, "bert_batch_first": 2048}
# Rows in each micro-batch are many here, and sums over them round as those over the full batch do not.
TOLERANCE = 5e-5


def large(family):
    return Case(family, "adamw", rows=LARGE[family], steps=3, device="cuda")


def within(case, **limits):
    """Exact under a budget of the device, and never above it."""
    budget = limits["budget"]
    result = run(case, "rescue", timeout=200, **limits)
    assert_equal(plain(case), result, max(case.tolerance, TOLERANCE))
    assert result.rescued > 0 and result.peak <= budget, f"rescued {result.rescued} times, peak {result.peak} of {budget}\n{result.command}"
    return result


# The first tensor of the MLP's first layer is a quarter of all.
@pytest.mark.parametrize("share", only([0.25], [0.5, 0.25]))
@pytest.mark.parametrize("family", only(["cnn", "vit", "autocast"], LARGE))
def test_budget(family, share):
    case = large(family)
    peak = tracked(case).peak
    if family == "mlp" and share < 0.5:
        pytest.skip("one segment of the allocator, 20 MiB, is more")
    result = within(case, budget=int(share * peak))
    events = result.report["oom_events"]
    assert {event["device"] for event in events} == {"cuda:0"}
    assert any(event["requested_bytes"] > 0 for event in events)


@pytest.mark.parametrize("family", only(["cnn"], ["gpt", "cnn"]))
def test_budget_with_expandable_segments(family):
    case = large(family)
    setting = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    within(case, budget=int(0.4 * run(case, "track", timeout=200, **setting).peak), **setting)


@pytest.mark.parametrize("family", only(["vit"], ["gpt", "vit", "lstm_batch_first"]))
def test_every_segment_fails_once(family):
    case = large(family)
    plain_failure = {}
    outcomes = []
    for n in range(1, 1 + max(tracked(case).allocations)):
        spec = f"cuda:0:nth:{n}"
        plain_failure[n] = run(case, "track", inject=spec, timeout=200)
        result = run(case, "rescue", inject=spec, timeout=200)
        outcomes.append(result.outcome)
        if result.outcome == "ok":
            assert_equal(plain(case), result, max(case.tolerance, TOLERANCE))
        else:
            assert (result.outcome, result.step) == ("oom", plain_failure[n].step), result.describe()
            assert not differences(plain_failure[n].arrays, result.arrays, 0), result.describe()
    assert all(failure.outcome == "oom" for failure in plain_failure.values()), "the retry of a failed request must fail too"
    assert outcomes.count("ok") > len(outcomes) // 2, outcomes


def test_pressure_shrinks_the_micro_batch():
    """Where the allocator has to empty its cache in each step, though nothing runs out, fewer rows are taken: then it need not any more."""
    case = Case("gpt", "adamw", rows=4096, steps=3, device="cuda")
    budget = tracked(case).peak // 4
    failed = {}
    for steps in (3, 10, 14):
        longer = dataclasses.replace(case, steps=steps)
        result = run(longer, "rescue", budget=budget, timeout=200)
        assert_equal(plain(longer), result, TOLERANCE)
        failed[steps] = result.report["devices"]["cuda:0"]["failed_allocations"]
    assert failed[14] == failed[10], failed


@pytest.mark.parametrize("family", ["hessian_vector_product", "meta_learning", "penalty_on_weight_gradient"])
def test_gradients_of_gradients(family):
    """The engine makes the graph of a gradient on its own thread, which counts nodes for itself."""
    case = Case(family, "sgd", rows=96, dtype="float64", steps=3, device="cuda")
    assert_equal(plain(case), run(case, "rescue", microbatch=5), case.tolerance)
    for number in (7, 31, 53):
        result = run(case, "rescue", KOILA_INJECT_OOM=f"every:{number}", KOILA_LADDER="1")
        assert_equal(plain(case), result, case.tolerance)
