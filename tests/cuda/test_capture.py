"""While a CUDA graph is captured koila stays out, and what was deferred has its value before it begins."""

import ast
import sys

import pytest
from programs import BUILD, ROOT, koila, plain

pytestmark = pytest.mark.skipif(not (BUILD / "tests/cuda/device/libsim_cuda_kernels.so").exists(),
                                reason="no CUDA build of torch to take the allocator from (.cache/c10_cuda/why_not)")


def test_stays_out_of_a_capture():
    job = (sys.executable, ROOT / "tests/cuda/capture_job.py")
    settings = {"PYTHONPATH": str(ROOT / "tests/cuda/device"), "OMP_NUM_THREADS": "1"}
    expected = plain(*job, **settings)
    assert expected.returncode == 0, expected.stderr
    found = koila(*job, KOILA_MICROBATCH="3", **settings)
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.splitlines()[:-1] == expected.stdout.splitlines()[:-1]
    first, second, at_begin, captured, after = ast.literal_eval(found.stdout.splitlines()[-1].removeprefix("regions "))
    assert 0 < first < second
    assert captured == at_begin, "a region ran while a graph was captured"
    assert after > captured
