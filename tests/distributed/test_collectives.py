"""Collective operations in a step that runs in micro-batches on one rank, or on both: the numbers of plain PyTorch, and as many collectives."""

import pytest
import ranks

JOBS = (
    "all_reduce_of_inputs", "all_reduce_that_is_read_before_and_after", "asynchronous", "centre_over_ranks", "statistic_of_the_batch", "functional_all_reduce",
    "functional_waited_for", "functional_gathers", "gathered_features", "gathered_into_a_tensor", "gathered_with_gradient", "others", "losses_for_the_log",
    "loss_reduced_in_place", "outputs_reduced_in_place", "two_stages_around_a_collective")
UNDER_A_BUDGET = ("budget_all_reduce_of_inputs", "budget_statistic")


@pytest.fixture(scope="module")
def plain():
    return ranks.run(*JOBS, *UNDER_A_BUDGET, koila=())


@pytest.mark.parametrize("koila", [(0,), (0, 1)], ids=["one", "both"])
def test_micro_batches(plain, koila):
    run = ranks.run(*JOBS, koila=koila, KOILA_MICROBATCH="16")
    for job in JOBS:
        ranks.assert_as_plain(plain, run, job)
    for rank in koila:
        regions = [run.ranks[rank][job].regions for job in JOBS]
        assert regions[0] > 0 and regions[-1] > regions[0], "nothing ran in micro-batches"


@pytest.mark.parametrize("ladder", ["0,1", "0,1,2,3"])
def test_budget(plain, ladder):
    """On rank 0 memory runs out from the second step on."""
    run = ranks.run(*UNDER_A_BUDGET, KOILA_LADDER=ladder, TEST_SHARE="0.6")
    for job in UNDER_A_BUDGET:
        ranks.assert_as_plain(plain, run, job)
        assert run.ranks[0][job].rescued > 0, f"{job}: nothing had to be rescued"


def test_nothing_runs_out(plain):
    run = ranks.run(*JOBS, koila=(0, 1))
    for job in JOBS:
        ranks.assert_as_plain(plain, run, job, tolerance=0)
        assert run.ranks[0][job].regions == 0
