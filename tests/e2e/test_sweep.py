"""Out-of-memory at allocation N of a run: exact, or the plain error with the plain state. scripts/sweep takes every N; here a sample,
another one in each case, so that together they go through all phases."""

import pytest

from harness import assert_equal, plain, run
from selection import one_in, only
from sweep import allocations, cases, fail_at

SAMPLE = 45


@pytest.mark.parametrize("case", one_in(2, cases()), ids=lambda case: f"{case.family}-{case.optimizer}")
def test_fail_once(case):
    total = allocations(case)
    specs = [f"nth:{1 + (i * total) // SAMPLE}" for i in range(SAMPLE)]
    outcomes = {spec: fail_at(case, spec) for spec in specs}
    within = [spec for spec in specs if fails_in_forward_or_backward(run(case, "track", inject=spec))]
    refused = [spec for spec in within if outcomes[spec] == "refused"]
    # There is nothing in these models that could not be rescued there. Only the very first operator of a step may find nothing yet that
    # could be split.
    assert len(within) >= SAMPLE // 5 and len(refused) <= 1, f"refused: {refused} of {within}"


@pytest.mark.parametrize("family", ["early_exit", "ghost_batch_norm", "labels_shifted_in_place", "connectionist_temporal", "transformer_of_reentrant_checkpoints", "transformer_of_checkpoints", "checkpoint_of_softmax_over_batch",
                                    "embedding_scaled_by_frequency", "mixture_of_experts", "encoder_decoder", "spectral_convolution"])
def test_fail_once_elsewhere(family):
    case, = cases([family], ["adamw"])
    total = allocations(case)
    for i in range(15):
        fail_at(case, f"nth:{1 + (i * total) // 15}")


@pytest.mark.parametrize("family", only(["clip", "statistics_by_hand"], ["batch_norm_res_net", "clip", "moco", "vector_quantiser", "statistics_by_hand", "instance_norm_running"]))
def test_fail_once_in_stages(family):
    case, = cases([family], ["sgd"])
    total = allocations(case)
    outcomes = [fail_at(case, f"nth:{1 + (i * total) // 25}") for i in range(25)]
    assert outcomes.count("exact") > 8, outcomes


@pytest.mark.parametrize("spec", only(["every:97", "random:0.01:12"], ["every:401", "every:97", "random:0.01:1", "random:0.01:12"]))
@pytest.mark.parametrize("family", ["batch_norm_unet", "clip"])
def test_fail_again_and_again_in_stages(family, spec):
    case, = cases([family], ["adamw"])
    fail_at(case, spec)


def fails_in_forward_or_backward(failure):
    assert failure.outcome == "oom"
    return "self.loss(" in failure.traceback or "loss.backward(" in failure.traceback


@pytest.mark.parametrize("spec", only(["every:17", "random:0.02:1"], ["every:150", "every:61", "every:17", "random:0.02:1", "random:0.02:2", "random:0.1:3"]))
@pytest.mark.parametrize("case", one_in(2, cases()), ids=lambda case: f"{case.family}-{case.optimizer}")
def test_fail_again_and_again(case, spec):
    """Out of memory within the micro-batches too."""
    fail_at(case, spec)


@pytest.mark.parametrize("case", one_in(2, cases()), ids=lambda case: f"{case.family}-{case.optimizer}")
def test_nothing_fails_beyond_the_last_allocation(case):
    assert_equal(plain(case), run(case, "rescue", inject=f"nth:{allocations(case) + 1}"), tolerance=0)
