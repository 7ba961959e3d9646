"""A LibTorch program in C++ that trains on the simulated device, under the real caching allocator: whole steps, out of memory included."""

import pytest
from programs import DEVICE, koila, needs_device, plain

STEPS = DEVICE / "sim_steps"
pytestmark = needs_device


def figures(output):
    """The numbers of each line by what stands before them."""
    lines = [line.rsplit(" ", 1) for line in output.splitlines() if not line.startswith("out_of_memory")]
    return {name: float(number) for name, number in lines}


def assert_alike(expected, actual):
    assert expected.keys() == actual.keys()
    for name, number in expected.items():
        assert actual[name] == pytest.approx(number, rel=1e-5), name


@pytest.mark.parametrize("mode", ["off", "track", "rescue"])
def test_nothing_to_rescue(mode):
    """To the last digit, the allocator's own out-of-memory included."""
    expected = plain(STEPS, OMP_NUM_THREADS="1")
    assert expected.returncode == 0, expected.stderr
    assert koila(STEPS, KOILA_MODE=mode, OMP_NUM_THREADS="1").stdout == expected.stdout


@pytest.mark.parametrize("rows", ["1", "3", "7"])
def test_micro_batch(rows):
    expected = plain(STEPS, "cuda", "mlp", "cnn", OMP_NUM_THREADS="1")
    found = koila(STEPS, "cuda", "mlp", "cnn", KOILA_MICROBATCH=rows, OMP_NUM_THREADS="1")
    assert_alike(figures(expected.stdout), figures(found.stdout))
    assert found.report["regions_total"]["count"] == 10


@pytest.mark.parametrize("how", [{"SIM_CAPACITY": "70MiB"}, {"KOILA_DEVICE_MEMORY": "70MiB"},
                                 {"KOILA_DEVICE_MEMORY": "0:70MiB", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
                                  "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "0"},
                                 {"SIM_CAPACITY": "70MiB", "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}], ids=lambda how: "-".join(how))
@pytest.mark.parametrize("scenario", ["mlp:65536", "cnn:4096"])
def test_rescue(scenario, how):
    whole = plain(STEPS, "cuda", scenario, OMP_NUM_THREADS="1")
    if "SIM_CAPACITY" in how:
        dead = plain(STEPS, "cuda", scenario, OMP_NUM_THREADS="1", **how)
        assert dead.returncode != 0 and "out of memory" in (dead.stdout + dead.stderr).lower()
    found = koila(STEPS, "cuda", scenario, OMP_NUM_THREADS="1", **how)
    assert found.returncode == 0, found.stderr[-3000:]
    assert_alike(figures(whole.stdout), figures(found.stdout))
    events = found.report["oom_events"]
    assert events and all(event["outcome"] == "rescued" for event in events)
    assert found.device()["peak_bytes"] <= 70 << 20
