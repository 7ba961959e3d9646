"""While a CUDA graph is captured koila stays out, and what was deferred has its value before it begins."""

import ast

from programs import ON_DEVICE, koila, needs_device, plain, script

pytestmark = needs_device


def test_stays_out_of_a_capture():
    job = script("capture_job.py")
    expected = plain(*job, **ON_DEVICE)
    assert expected.returncode == 0, expected.stderr
    found = koila(*job, KOILA_MICROBATCH="3", **ON_DEVICE)
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.splitlines()[:-1] == expected.stdout.splitlines()[:-1]
    first, second, at_begin, captured, after = ast.literal_eval(found.stdout.splitlines()[-1].removeprefix("regions "))
    assert 0 < first < second
    assert captured == at_begin, "a region ran while a graph was captured"
    assert after > captured
