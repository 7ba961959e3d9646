"""PyTorch's own caching allocator (libc10_cuda.so) over the simulated runtime: koila's figures are the allocator's, in each of its modes."""

import json

import pytest
from programs import ON_DEVICE, koila, needs_device, script

pytestmark = needs_device


def run(*arguments, **variables):
    done = koila(*script("allocator_job.py"), *arguments, SIM_CAPACITY="1GiB", KOILA_REPORT="off", **ON_DEVICE, **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["track", "rescue"])
@pytest.mark.parametrize("setting", ["", "expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:32"])
def test_figures_are_the_allocators(mode, setting):
    found = run(KOILA_MODE=mode, PYTORCH_ALLOC_CONF=setting)
    for figures in found["seen"]:
        assert figures["tensors"] == figures["requested"]
        assert figures["live"] == figures["reserved"]
    assert max(figures["tensors"] for figures in found["seen"]) > 10 << 20
    assert "CUDA out of memory" in found["message"]
    assert found["device"]["failed_allocations"] > 0
    assert {source["library"] for source in found["sources"]} == {"c10_cuda"}


def test_the_budget_is_the_devices_size():
    found = run(KOILA_MODE="track", KOILA_DEVICE_MEMORY="300MiB")
    assert "GPU 0 has a total capacity of 300.00 MiB" in found["message"]
    assert found["device"]["peak_bytes"] <= 300 << 20
    assert all(figures["tensors"] == figures["requested"] for figures in found["seen"])


def test_memory_fraction():
    """No cudaMalloc is tried beyond the fraction: only the allocator's observer tells."""
    found = run("0.25", KOILA_MODE="track")
    assert "CUDA out of memory" in found["message"]
    assert all(figures["tensors"] == figures["requested"] and figures["live"] == figures["reserved"] for figures in found["seen"])


def test_an_allocator_that_takes_no_observers_is_named():
    found = run(KOILA_MODE="rescue", PYTORCH_ALLOC_CONF="backend:cudaMallocAsync")
    assert "CUDA out of memory" in found["message"] or "Allocation on device" in found["message"]
    assert any("cudaMallocAsync" in note for note in found["notes"]), found["notes"]
    assert found["device"]["peak_bytes"] > 500 << 20, "the ledger has it all the same"
    assert {source["kind"] for source in found["sources"]} == {"pool"}
