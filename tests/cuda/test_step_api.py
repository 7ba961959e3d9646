"""koila::step on the simulated device, under the real caching allocator: its memory runs out, the outputs are gathered in host memory, masks are drawn by the device's
generator."""

import sys
from pathlib import Path

import pytest
from programs import DEVICE, koila, needs_device, plain

sys.path.append(str(Path(__file__).resolve().parents[1] / "api"))
from test_step import steps  # noqa: E402

PROGRAM = DEVICE / "sim_step"
pytestmark = needs_device


def run(way, *arguments, **variables):
    done = way(PROGRAM, "--cuda", *arguments, OMP_NUM_THREADS="1", **variables)
    assert done.returncode == 0, done.stderr
    return steps(done.stdout)


@pytest.mark.parametrize("kind", [[], ["--separable"], ["--gather"]])
def test_budget(kind):
    expected, found = run(plain, "--plain", *kind), run(koila, *kind, KOILA_MODE="track", KOILA_DEVICE_MEMORY="40MiB")
    assert [figures for _, figures in found] == [pytest.approx(figures, rel=1e-11) for _, figures in expected]
    assert all(rows < 32 for rows, _ in found)


def test_the_devices_masks():
    """The second pass is compared with the first: other masks would be an error."""
    (rows, first), (_, second) = run(koila, "--dropout", KOILA_MODE="track", KOILA_DEVICE_MEMORY="40MiB")
    assert rows < 32 and first != second
