"""The C++ API about memory on the simulated device, under the real caching allocator: with koila, and with what that allocator tells."""

import pytest
from programs import DEVICE, MI, koila, needs_device, plain

PROGRAM = DEVICE / "sim_memory"
pytestmark = needs_device


def figures(done):
    assert done.returncode == 0, done.stderr
    return {name: int(value) for name, value in (line.rsplit(" ", 1) for line in done.stdout.splitlines()[1:])}


def test_categories_are_what_the_program_counts():
    found = figures(koila(PROGRAM, "categories", "cuda", OMP_NUM_THREADS="1"))
    assert found == {name: 0 for name in ("parameters", "gradients", "optimizer state", "inputs", "activations", "all")}


@pytest.mark.parametrize("run", [koila, plain])
def test_tracks_within_and_across_each_other(run):
    """With koila the first of them is the allocator's still: koila counts from the operator on that follows the first memory."""
    found = figures(run(PROGRAM, "tracks", "cuda", OMP_NUM_THREADS="1"))
    assert found == {"inner": 2 * MI, "inner stopped": 2 * MI, "across": 3 * MI, "outer": 5 * MI, "growth": MI}
