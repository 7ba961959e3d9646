"""Out-of-memory within an optimizer's step: plain's numbers to the bit, or plain's error with plain's state, half done as that may be, and a reason."""

import functools
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import pytest

from harness import HERE, clean_environment, koila_environment
from selection import only

VARIANTS = ["adam-foreach", "adam-loop", "adamw-foreach", "adamw-loop", "adamw-fused", "sgd-foreach", "sgd-loop"]
LADDERS = ["0,1,2", "0,1", "1", "2", "3"]
UPDATED = re.compile(r"Since the last backward pass (\d+) parameters? ha(?:s|ve) been updated")


@functools.cache
def found(mode, ladder="0,1,2"):
    """What optimizer_steps.py finds: {(variant, what happened to it): what came of it}."""
    environment = {} if mode == "plain" else koila_environment(mode, KOILA_LADDER=ladder, KOILA_LOG="off")
    with tempfile.TemporaryDirectory(prefix="koila-e2e-") as folder:
        out = Path(folder, "out")
        subprocess.run([sys.executable, HERE / "optimizer_steps.py", out], env=clean_environment(environment), check=True, timeout=600)
        return pickle.loads(out.read_bytes())


def assert_same(expected, actual):
    assert expected.keys() == actual.keys()
    wrong = [name for name in expected if not numpy.array_equal(expected[name], actual[name])]
    assert not wrong, f"not plain's: {wrong}"


def outcome(ladder, key):
    """The rung that made a run exact ("" where none is reported), or "refuse": plain's error and state, and a reason that tells of it. "number": the
    same without a reason, as a Python number is made a tensor of four or eight bytes before an operator is called, of which koila hears nothing."""
    actual, refused = found("rescue", ladder)[key], found("track")[key]
    assert refused["error"], f"{key}: plain gets by: the test is worth nothing"
    rungs, reasons = [rung for rung, _ in actual["events"]], [reason for _, reason in actual["events"] if reason]
    if not actual["error"]:
        for expected, state in zip(found("plain")[key[0], "whole"]["state"], actual["state"], strict=True):
            assert_same(expected, state)
        assert "refuse" not in rungs and ("micro-batches" not in rungs or "1" in ladder)
        return rungs[0] if rungs else ""
    assert actual["error"] == refused["error"]
    assert len(actual["state"]) == len(refused["state"])
    for expected, state in zip(refused["state"], actual["state"]):
        assert_same(expected, state)
    if all(reason.startswith("no operator that koila sees asked") for reason in reasons) and "Tried to allocate 0.0 KiB" in actual["error"]:
        return "number"
    assert rungs == ["refuse"] and len(reasons) == 1, actual["events"]
    for reason in reasons:
        text = UPDATED.search(reason)
        told = int(text[1]) if text else 0
        assert told == actual["updated"] or told < actual["updated"] and "may have done part of it" in reason, reason
    return "refuse"


@pytest.mark.parametrize("variant", only(["adam-foreach", "sgd-loop"], VARIANTS))
def test_nothing_is_changed_by_tracking(variant):
    whole = found("plain")[variant, "whole"]["state"]
    for mode in ("track", "rescue"):
        actual = found(mode)[variant, "whole"]
        assert not actual["events"]
        for expected, state in zip(whole, actual["state"], strict=True):
            assert_same(expected, state)


def outcomes(ladder, variant):
    return {key: outcome(ladder, key) for key in found("track") if key[:2] == (variant, "inject")}


def named(outcomes, *names):
    return {key for key, name in outcomes.items() if name in names}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ladder", only(["0,1,2", "0,1", "1"], LADDERS))
def test_each_allocation_fails(ladder, variant):
    actual = outcomes(ladder, variant)
    if ladder == "1":  # what works element by element goes on late; the state, and what may be half done, is refused
        assert bool(named(actual, "micro-batches")) == ((variant.startswith("adam") and not variant.endswith("fused")) or variant == "sgd-loop"), actual
        assert not named(actual, ""), actual
    elif ladder == "3":
        assert len(named(actual, "refuse", "number")) == len(actual), actual
    else:  # the allocator itself tries again, or serves, where an update could not be made again
        assert not named(actual, "refuse", "number"), actual
        assert bool(named(actual, "retry")) == ("0" in ladder) and bool(named(actual, "offload")) == (ladder == "2"), actual


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ladder", only(["0,1,2"], ["0,1,2", "2"]))
def test_each_rescue_is_reported(ladder, variant):
    actual = outcomes(ladder, variant)
    assert not named(actual, ""), actual


BUDGETS = [("room", 1), ("room", 2), ("budget",)]


def cases_of_budgets():
    """No budget hurts the second step of those that ask for nothing large in it."""
    return [(variant, *budget) for variant in VARIANTS for budget in BUDGETS
            if budget != ("room", 2) or variant in ("adam-foreach", "adam-loop", "adamw-foreach", "adamw-loop")]


def name_of(case):
    return "-".join(str(part) for part in case)


@pytest.mark.parametrize("case", cases_of_budgets(), ids=name_of)
@pytest.mark.parametrize("ladder", only(["0,1,2"], ["0,1,2", "2"]))
def test_budget_for_all_but_the_optimizer(ladder, case):
    late = "1" in ladder and case[1:] == ("room", 2)  # by then the state is there
    assert outcome(ladder, case) == ("micro-batches" if late else "offload")


@pytest.mark.parametrize("case", cases_of_budgets(), ids=name_of)
@pytest.mark.parametrize("ladder", only(["0,1"], ["0,1", "3"]))
def test_budget_without_offload(ladder, case):
    late = "1" in ladder and case[1:] == ("room", 2)
    assert outcome(ladder, case) == ("micro-batches" if late else "refuse")


@pytest.mark.parametrize("case, updated", [(("adam-loop", "room", 2), 2), (("adamw-loop", "room", 2), 3), (("adamw-foreach", "room", 2), 3), (("sgd-loop", "room", 1), 2),
                                           (("sgd-loop", "budget"), 2), (("adam-foreach", "room", 2), 0), (("sgd-foreach", "room", 1), 0)],
                         ids=lambda value: name_of(value) if isinstance(value, tuple) else str(value))
@pytest.mark.parametrize("ladder", only(["0,1"], ["0,1", "3"]))
def test_reason_names_what_is_half_done(ladder, case, updated):
    """AdamW's weight decay has been there before the large parameter's update runs out."""
    if ladder == "0,1" and case[1:] == ("room", 2):
        pytest.skip("it goes on late")
    assert outcome(ladder, case) == "refuse"
    actual = found("rescue", ladder)[case]
    assert actual["updated"] == updated
    (reason,) = [reason for _, reason in actual["events"]]
    text = UPDATED.search(reason)
    assert (int(text[1]) if text else 0) == updated, reason
