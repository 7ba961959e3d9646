"""A training loop on any thread is followed and rescued as on the thread that imported torch, see Note [Whose steps are followed] in torchglue/step/step_owner.h."""

import json
import subprocess
import sys

import numpy
import pytest

from harness import LIBRARY, ROOT, clean_environment, koila_environment

PROGRAM = ROOT / "tests" / "e2e" / "thread_steps.py"

SLOW_END = ROOT / "build" / "tests" / "shim" / "libslow_thread_end.so"

# What makes it all run on one thread at a time: each step is rescued.
ONE_AT_A_TIME = ["on_main", "on_a_thread", "after_a_look", "made_there_too", "main_and_then_a_thread", "a_pool", "of_a_thread_of_a_thread", "beside_idle_threads", "read_by_main"]
AS_ON_MAIN = [*ONE_AT_A_TIME[:-1], "main_evaluates", "forward_there_backward_here"]  # these give the same numbers
SEVERAL = ["two_at_once", "main_evaluates", "forward_there_backward_here"]


def run(tmp_path, name, mode=None, **more):
    """Exit status, result, report, and what stood on stderr."""
    file, report = tmp_path / "result.npy", tmp_path / "report.json"
    file.unlink(missing_ok=True)
    environment = koila_environment(mode, KOILA_REPORT=str(report), **more) if mode else {}
    process = subprocess.run([sys.executable, str(PROGRAM), name, str(file)], env=clean_environment(environment | {"OMP_NUM_THREADS": "1"}), capture_output=True, text=True,
                             timeout=600)
    return process.returncode, numpy.load(file) if file.exists() else None, json.loads(report.read_text()) if mode else None, process.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    known = {}

    def of(name):
        name = "on_main" if name in AS_ON_MAIN else name
        if name not in known:
            folder = tmp_path_factory.mktemp("plain")
            status, result, _, said = run(folder, name)
            assert status == 0, said
            _, _, report, _ = run(folder, name, "track")
            known[name] = result, report["devices"]["cpu"]["peak_bytes"]
        return known[name]

    return of


def outcomes(report):
    return {event["outcome"] for event in report["oom_events"]}


def same(expected, found, tolerance=1e-9):
    numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", ONE_AT_A_TIME)
def test_rescued(tmp_path, plain, name):
    expected, peak = plain(name)
    status, found, report, said = run(tmp_path, name, "rescue", KOILA_LADDER="0,1", KOILA_CPU_MEMORY=f"{int(peak * 0.75)}B")
    assert status == 0, said
    same(expected, found)
    assert outcomes(report) == {"rescued"}, report["oom_events"]


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("limit", [{}, {"KOILA_INJECT_OOM": "every:41"}, {"share": 0.8}, {"KOILA_MICROBATCH": "50"}], ids=str)
def test_several_threads_do_not_disturb_each_other(tmp_path, plain, name, limit):
    expected, peak = plain(name)
    variables = {"KOILA_CPU_MEMORY": f"{int(peak * limit['share'])}B"} if "share" in limit else limit
    status, found, report, said = run(tmp_path, name, "rescue", KOILA_LADDER="0,1", **variables)
    assert status >= 0, said
    if found is None or "koila: refused" in said:
        assert "refused" in outcomes(report) and all(event["reason"] for event in report["oom_events"] if event["outcome"] == "refused"), said
        return
    assert status == 0, said
    same(expected, found)


@pytest.mark.parametrize("name", ["on_a_thread", "a_pool", "two_at_once", "main_evaluates", "beside_idle_threads"])
def test_nothing_changes_where_nothing_runs_out(tmp_path, plain, name):
    expected, _ = plain(name)
    for mode in ("rescue", "track", "off"):
        status, found, report, said = run(tmp_path, name, mode)
        assert status == 0, said
        same(expected, found, tolerance=0)


@pytest.mark.parametrize("number", [5, 9, 14, 23, 31, 44, 60])
def test_failures_on_a_thread(tmp_path, plain, number):
    expected, _ = plain("on_a_thread")
    status, found, report, said = run(tmp_path, "on_a_thread", "rescue", KOILA_LADDER="0,1", KOILA_INJECT_OOM=f"every:{number}")
    assert status == 0 and outcomes(report) == {"rescued"}, said
    same(expected, found)


# Another thread of Python's may go on before the thread that it has joined is over, see Note [The end of a Python thread] in torchglue/base/python_thread.h.
@pytest.mark.parametrize("name", ["main_and_then_a_thread", "on_a_thread", "a_pool"])
@pytest.mark.parametrize("limit", [{"share": 0.75}, {"KOILA_INJECT_OOM": "every:9"}], ids=str)
def test_threads_that_end_slowly(tmp_path, plain, name, limit):
    expected, peak = plain(name)
    variables = {"KOILA_CPU_MEMORY": f"{int(peak * limit['share'])}B"} if "share" in limit else limit
    status, found, report, said = run(tmp_path, name, "rescue", KOILA_LADDER="0,1", LD_PRELOAD=f"{SLOW_END}:{LIBRARY}", **variables)
    assert status == 0 and outcomes(report) == {"rescued"}, said
    same(expected, found)
