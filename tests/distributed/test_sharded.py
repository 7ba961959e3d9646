"""Sharded parameters and tensors: koila stays out of fully_shard in every mode, and of DTensor's way."""

import pytest
import ranks

# A layer whose parameters have been gathered: gloo's thread holds the last one until it is done with it, later or sooner.
ONE_LAYER = 8 * (256 * 256 + 256)


@pytest.fixture(scope="module")
def plain():
    return ranks.run("fsdp2", "tensor_parallel", koila=())


@pytest.fixture(scope="module")
def tracked():
    return ranks.run("fsdp2", koila=(0, 1), KOILA_MODE="track")


@pytest.mark.parametrize("settings", [{}, {"KOILA_MODE": "lazy"}, {"KOILA_MODE": "lazy", "KOILA_CPU_MEMORY": "64MiB"}, {"KOILA_MICROBATCH": "16"}], ids=str)
def test_fully_shard_runs_as_plain_does(plain, tracked, settings):
    run = ranks.run("fsdp2", koila=(0, 1), **settings)
    ranks.assert_as_plain(plain, run, "fsdp2", tolerance=0)
    for rank in range(ranks.RANKS):
        assert run.ranks[rank]["fsdp2"].regions == 0
        assert run.ranks[rank]["fsdp2"].peak <= 1.01 * tracked.ranks[rank]["fsdp2"].peak + ONE_LAYER


def test_tensor_parallel(plain):
    run = ranks.run("tensor_parallel", koila=(0, 1), KOILA_MICROBATCH="16")
    ranks.assert_as_plain(plain, run, "tensor_parallel")
