"""Calls on a split batch under autocast have the type that plain gives them, on the CPU and on the simulated CUDA device, whose list of what it takes to single precision is another."""

import numpy
import pytest

import cases
from test_cuda import DEVICE

BOTH = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not DEVICE.exists(), reason="no CUDA build of torch to take the allocator from"))]


def violations(plain, found):
    worse = []
    for name, said in plain.items():
        a, b = said.get("gave"), found[name].get("gave")
        if a is None or b is None:
            if found[name].get("error") != said.get("error"):
                worse.append(f"{name}: {found[name]}, plain {said}")
            continue
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            if (one["type"], one["shape"]) != (other["type"], other["shape"]):
                worse.append(f"{name}, {i}: {other['type']} {other['shape']}, plain {one['type']} {one['shape']}")
                continue
            x, y = numpy.array(one["values"]), numpy.array(other["values"])
            far = numpy.abs(x - y).max(initial=0) / max(numpy.abs(x).max(initial=0), 1e-3)
            if not far <= 0.03:  # a few roundings to bfloat16
                worse.append(f"{name}, {i}: off by {far:.3f}")
    return worse


@pytest.mark.parametrize("device", BOTH)
def test_types_and_values(device):
    plain, _ = cases.run("autocast_steps.py", device)
    found, _ = cases.run("autocast_steps.py", device, KOILA_LADDER="0,1")
    assert len(plain) > 70
    assert violations(plain, found) == []
