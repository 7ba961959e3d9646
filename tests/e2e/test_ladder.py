"""The ladder, rung by rung (KOILA_LADDER): what each rescues alone, what there is without it, and that none of them changes a result or never ends."""

import functools
import pickle
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy
import pytest

from budgets import budget_of, refused_run
from harness import HERE, Case, assert_equal, assert_exact_or_untouched, clean_environment, families, koila_environment, plain, run
from selection import full, in_full, only

LADDERS = ["0,1,2", "0", "1", "2", "3"]
STORMS = ["every:1", "every:2", "random:0.3:7"]


# ---- operators ------------------------------------------------------------------------------------------------------------------


@functools.cache
def found(mode, ladder="0,1,2"):
    """What ladder_steps.py finds: {(scenario, what happened to it): what came of it}."""
    with tempfile.TemporaryDirectory(prefix="koila-e2e-") as folder:
        out = Path(folder, "out")
        subprocess.run([sys.executable, HERE / "ladder_steps.py", out, *STORMS], check=True, timeout=600,
                       env=clean_environment(koila_environment(mode, KOILA_LADDER=ladder, KOILA_LOG="off")))
        return pickle.loads(out.read_bytes())


def same(expected, actual, tolerance=0):
    def equal(a, b):
        if not isinstance(a, numpy.ndarray) or not isinstance(b, numpy.ndarray):
            return type(a) is type(b) and a == b
        return a.shape == b.shape and a.dtype == b.dtype and (numpy.allclose(a, b, tolerance, tolerance) if tolerance else numpy.array_equal(a, b))
    return (len(expected["tensors"]) == len(actual["tensors"]) and all(map(equal, expected["tensors"], actual["tensors"]))
            and numpy.array_equal(expected["generator"], actual["generator"]))


def outcome(ladder, scenario, what):
    """The rungs that made a run exact, as the report has them, or {"refuse"}: plain's error, and the state that some error of plain's leaves."""
    actual, plainly = found("rescue", ladder)[scenario, what], found("track")
    assert "crash" not in actual, actual
    rungs = {rung for rung, _ in actual["events"]}
    tolerance = 1e-12 if "micro-batches" in rungs else 0
    assert len(actual["events"]) < 400, actual  # it comes to an end; the proof of a step asks for memory as well
    if not actual["error"]:
        assert same(plainly[scenario, "whole"], actual, tolerance), f"{what} is not plain's: {rungs}"
        return rungs
    assert actual["type"] == "OutOfMemoryError"
    if what.startswith("nth") and rungs <= {"refuse"}:
        assert actual["error"] == plainly[scenario, what]["error"] and same(plainly[scenario, what], actual), what
    else:
        failures = [failure for (name, _), failure in plainly.items() if name == scenario and failure["error"]]
        assert any(same(failure, actual, tolerance) for failure in failures), f"{what}: no error of plain's leaves this state"
    # A Python number that becomes a tensor belongs to no operator.
    assert "refuse" in rungs or "allocate 0.0 KiB" in actual["error"]
    return {"refuse"}


# What each rung does about an injected failure when it is alone, in the order of LADDERS.
RETRY, SPLIT, SERVED, REFUSED = "retry", "micro-batches", "offload", "refuse"
EXPECTED = {
    "forward": (RETRY, RETRY, SPLIT, SERVED, REFUSED),
    "backward": (RETRY, RETRY, SPLIT, SERVED, REFUSED),
    "out_of_place": (RETRY, RETRY, SPLIT, SERVED, REFUSED),
    **dict.fromkeys(["in_place", "in_place_scattered", "out_resized", "out_of_another_shape", "out_shares_memory", "out_of_two", "out_of_another_type",
                     "foreach_in_place", "foreach_out_of_place"], (RETRY, RETRY, REFUSED, SERVED, REFUSED)),
}
# The first allocation of a backward pass is an operator's before it.
NUMBERS_BEFORE = {"backward": 1}


def numbers(scenario):
    return range(1 + NUMBERS_BEFORE.get(scenario, 0), found("track")[scenario, "whole"]["allocations"] + 1)


@pytest.mark.parametrize("scenario", EXPECTED)
@pytest.mark.parametrize("ladder", only(["0,1,2", "2"], LADDERS))
def test_each_allocation_fails(ladder, scenario):
    rung = EXPECTED[scenario][LADDERS.index(ladder)]
    assert numbers(scenario), "it asks for no memory: the test is worth nothing"
    for number in numbers(scenario):
        assert outcome(ladder, scenario, f"nth:{number}") == ({rung} if rung else set()), number


def in_quick(ladder, scenario, *marks):
    """The ladders that tell most: all rungs, and memory outside alone."""
    return pytest.param(ladder, scenario, marks=[*marks] if ladder in ("0,1,2", "2") else [*marks, full])


@pytest.mark.parametrize("ladder, scenario", [
    *[in_quick(ladder, "running_statistics") for ladder in LADDERS],
    *[in_quick(ladder, "drawn") for ladder in ("0", "2", "3")],
    *[in_quick(ladder, "in_place_drawn") for ladder in LADDERS]])
def test_each_allocation_fails_beside_what_is_drawn_and_updated(ladder, scenario):
    """A dropout in micro-batches draws for itself, by design, so it is not among these."""
    for number in numbers(scenario):
        outcome(ladder, scenario, f"nth:{number}")


UNREADABLE = "a loss whose step was converted by the backward pass that is refused then is not to be read again"


@pytest.mark.parametrize("ladder, scenario", [
    in_quick(ladder, scenario, *([pytest.mark.xfail(strict=True, reason=UNREADABLE)] if scenario == "backward" and "1" in ladder else []))
    for ladder in LADDERS for scenario in [*EXPECTED, "in_place_drawn", "running_statistics"]])
def test_it_fails_again_and_again(ladder, scenario):
    for spec in STORMS:
        outcome(ladder, scenario, spec)


@pytest.mark.parametrize("scenario", EXPECTED)
@pytest.mark.parametrize("ladder", only(["0,1,2", "2"], LADDERS))
def test_no_room_at_all(ladder, scenario):
    """Nothing from the first allocation on: rung 2 has it kept outside; the others have no use for themselves, but for what a backward pass frees."""
    rungs = outcome(ladder, scenario, "full")
    if ladder == "2" or ladder == "0,1,2" and EXPECTED[scenario][2] == REFUSED:
        assert rungs == {"offload"}
    elif ladder == "0,1,2":
        assert rungs == {"micro-batches", "offload"} or scenario == "backward"
    elif scenario != "backward":
        assert rungs == {"refuse"}


# ---- training -------------------------------------------------------------------------------------------------------------------

DEFAULT = "0,1,2"


def rungs_of(result):
    assert result.report["ladder"].keys() == {event["rung"] for event in result.report["oom_events"]}
    assert all(totals["count"] > 0 and 0 <= totals["seconds"] < 30 for totals in result.report["ladder"].values())
    return set(result.report["ladder"])


def train(family, ladder, share=0.1):
    """("exact", rungs), to the bit where nothing was split, or ("refused", rungs)."""
    case = Case(family, "adamw", rows=families()[family].budget_rows, steps=3, drops=True)
    budget = budget_of(case, share)
    assert run(case, "track", budget=budget).outcome == "oom", "plain PyTorch gets by: the test is worth nothing"
    result = run(case, "rescue", budget=budget, **({} if ladder == DEFAULT else {"KOILA_LADDER": ladder}))
    rungs = rungs_of(result)
    if result.outcome == "ok" and "micro-batches" not in rungs:
        assert_equal(plain(case), result, tolerance=0)
        assert result.report["devices"]["cpu"]["outside_written_bytes"] > 0
        return "exact", rungs
    outcome = assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance)
    assert (outcome == "refused") == any(result.reasons)
    return outcome, rungs


@pytest.mark.parametrize("family", only(["gpt"], ["mlp", "gpt"]))
@pytest.mark.parametrize("ladder, rung", [(DEFAULT, "micro-batches"), in_full(("0", "")), in_full(("1", "micro-batches")), ("2", "offload"), in_full(("3", "")), in_full(("0,2,3", "offload"))])
def test_budget_of_what_can_be_split(ladder, rung, family):
    assert train(family, ladder) == (("exact", {rung}) if rung else ("refused", {"refuse"}))


@pytest.mark.parametrize("family", ["node_hook", "no_batch", "row_too_big"])
@pytest.mark.parametrize("ladder", only(["2"], ["2", "0,1", "0", "3"]))
def test_budget_of_what_cannot_be_split(ladder, family):
    outcome, rungs = train(family, ladder)
    if ladder == "2":
        assert (outcome, rungs) == ("exact", {"offload"})
    else:
        assert outcome == "refused" and "refuse" in rungs and "offload" not in rungs


@pytest.mark.parametrize("family, share, rung", [("node_hook", 0.6, "offload"), ("create_graph", 0.6, "micro-batches"), ("row_too_big", 0.6, "micro-batches"),
                                                 ("node_hook", 0.1, ""), ("no_batch", 0.1, "")])
def test_all_rungs_for_what_cannot_be_split(family, share, rung):
    """What a first rung has split in forward stays split: where its backward pass cannot be, nothing can be kept outside any more."""
    outcome, rungs = train(family, DEFAULT, share)
    if rung:
        assert outcome == "exact" and rung in rungs
    else:
        assert outcome == "exact" or "refuse" in rungs


# ---- where there is no room outside ------------------------------------------------------------------------------------------------

NO_ROOM = textwrap.dedent("""
    import os, resource, shutil, sys
    import torch
    sys.path.append(sys.argv[1])
    from koila_abi import Koila
    koila = Koila()
    torch.manual_seed(0)
    x = torch.randn(300, 300)
    if sys.argv[2] == "gone":
        shutil.rmtree(os.environ["KOILA_SPILL_DIR"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if sys.argv[2] == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    torch.ones(1, requires_grad=True).sum().backward()  # what follows is an optimizer's
    koila.limit(koila.live() + 1000)
    try:
        with torch.no_grad():
            y = x.cumsum(0)
            x.scatter_reduce_(0, torch.zeros(300, 300, dtype=torch.long), y, "mean", include_self=False)
        koila.limit(0)
        print("exact", x.double().sum().item())
    except torch.OutOfMemoryError as error:
        koila.limit(0)
        print(str(error).split(";")[0], x.double().sum().item())
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    report = koila.report()
    print("; ".join(report["notes"]))
    print(sorted(report["ladder"]))
""")


def without_room(what, mode="rescue", folder=""):
    environment = koila_environment(mode, KOILA_LADDER="2", KOILA_SPILL_DIR=str(folder))
    done = subprocess.run([sys.executable, "-c", NO_ROOM, HERE.parent.parent / "scripts" / "lib", what], env=clean_environment(environment),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [*done.stdout.splitlines(), done.stderr]


def test_no_room_outside(tmp_path):
    expected, *_ = without_room("", "track", tmp_path)
    assert expected.startswith("CPU out of memory. Tried to allocate")
    for what in ("full", "gone"):
        folder = tmp_path / what
        folder.mkdir()
        found, note, rungs, log = without_room(what, folder=folder)
        assert found == expected, log
        assert f"KOILA_SPILL_DIR={folder}" in note
        assert "refuse" in rungs


def test_no_rescue_is_reported_where_there_is_no_room_outside(tmp_path):
    _, _, rungs, _ = without_room("full", folder=tmp_path)
    assert rungs == "['refuse']"


def test_folder_that_is_none(tmp_path):
    """Another one is taken, and a warning says so."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "nowhere"):
        found, _, rungs, log = without_room("", folder=folder)
        assert found.startswith("exact") and rungs == "['offload']", log
        assert f"KOILA_SPILL_DIR={folder} is not a folder" in log
