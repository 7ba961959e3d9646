"""DistributedDataParallel with one rank, or both, in micro-batches."""

import pytest
import ranks

JOBS = (
    "ddp", "ddp_bucket_views", "ddp_batch_norm", "ddp_no_sync", "ddp_several_forwards", "ddp_unused_head_is_dropped", "ddp_unused_head_is_handed_out",
    "ddp_heads_in_turn", "ddp_static_graph", "ddp_gan")
FAILING = ("ddp_gan_that_runs_out", "callbacks_by_hand")
UNDER_A_BUDGET = ("budget_ddp_gan", "budget_ddp_unused")


@pytest.fixture(scope="module")
def plain():
    return ranks.run(*JOBS, *FAILING, *UNDER_A_BUDGET, koila=())


@pytest.mark.parametrize("koila", [(0,), (0, 1)], ids=["one", "both"])
def test_micro_batches(plain, koila):
    run = ranks.run(*JOBS, koila=koila, KOILA_MICROBATCH="16")
    for job in JOBS:
        ranks.assert_as_plain(plain, run, job)


@pytest.mark.parametrize("job", FAILING)
def test_each_allocation_of_backward_fails_once(plain, job):
    """What hooks queue on the engine in the pass that ran out is called at the end of the one that takes over."""
    run = ranks.run(job, KOILA_LADDER="1", TEST_FAIL="1")
    ranks.assert_as_plain(plain, run, job)
    assert run.ranks[0][job].rescued > 0


def test_budget(plain):
    run = ranks.run(*UNDER_A_BUDGET, KOILA_LADDER="0,1", TEST_SHARE="0.6")
    for job in UNDER_A_BUDGET:
        ranks.assert_as_plain(plain, run, job)
    assert run.ranks[0]["budget_ddp_unused"].rescued > 0
