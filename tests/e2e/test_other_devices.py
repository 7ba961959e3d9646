"""Tensors on the meta device, or any that koila does not work on: nothing of koila's shows, and steps on the CPU beside them are as exact as ever."""

import pytest

import cases


@pytest.fixture(scope="module")
def plain():
    return cases.run("device_steps.py")[0]


@pytest.mark.parametrize("settings", [{"KOILA_LADDER": "0,1"}, {"KOILA_MICROBATCH": "3"}], ids=["as_it_is", "micro_batches"])
def test_nothing_shows(plain, settings):
    found, _ = cases.run("device_steps.py", **settings)
    assert len(plain) > 20
    assert cases.differences(plain, found, 1e-6 if "KOILA_MICROBATCH" in settings else 0.0) == []


@pytest.mark.parametrize("ladder", ["1", "0,1"])
def test_a_loaded_model_is_rescued(plain, ladder):
    """from_pretrained from end to end: what it has loaded trains on a budget, to plain's numbers."""
    found, log = cases.run("device_steps.py", "from_pretrained", KOILA_LADDER=ladder, KOILA_CPU_MEMORY="2200KiB")
    assert "koila: rescued" in log and "refused" not in log, log
    assert cases.differences({name: plain[name] for name in found}, found, 1e-6) == []  # transformers makes its loss in float32
