"""What LibTorch programs ask koila about memory: with koila preloaded, and with the program linked to it."""

import collections
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KOILA_BUILD", ROOT / "build"))
PRELOAD = Path(os.environ.get("KOILA_LIBRARY", BUILD / "lib" / "libkoila.so"))
PROGRAM = BUILD / "tests" / "api" / "memory_program"
TRACK = {"KOILA_MODE": "track", "KOILA_CPU_MEMORY": "100MiB"}
MI = 1 << 20


@pytest.fixture(params=["preloaded", "linked"])
def koila(request):
    """Runs a scenario; what it printed, by name."""
    linked = request.param == "linked"

    def run(scenario, *arguments, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KOILA_") and name != "LD_PRELOAD"}
        variables = {"KOILA_REPORT": "off", "KOILA_LOG": "error", "OMP_NUM_THREADS": "1"} | ({} if linked else {"LD_PRELOAD": str(PRELOAD)}) | variables
        program = PROGRAM.with_name("memory_program_linked") if linked else PROGRAM
        done = subprocess.run([program, scenario, *map(str, arguments)], env=kept | variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        said = collections.defaultdict(list)
        for line in done.stdout.splitlines():
            name, value = line.rsplit(" ", 1)
            said[name].append(value)
        assert said.pop("version") == ["0.1.0"]
        return said, done

    return run


def ints(said):
    return {name: [int(value) for value in values] for name, values in said.items()}


def test_categories_are_what_the_program_counts(koila):
    said, _ = koila("categories")
    assert ints(said) == {name: [0] for name in ("parameters", "gradients", "optimizer state", "inputs", "activations", "all")}


def test_tracks_within_and_across_each_other(koila):
    said, _ = koila("tracks")
    assert ints(said) == {"inner": [2 * MI], "inner stopped": [2 * MI], "across": [3 * MI], "outer": [5 * MI], "growth": [MI]}


@pytest.mark.parametrize("own", [0, 400])
def test_of_several_budgets_the_smallest_holds(koila, own):
    said, _ = koila("budgets", KOILA_MODE="track", **({"KOILA_CPU_MEMORY": f"{own}MiB"} if own else {}))
    assert ints(said) == {"before": [own], "first": [100], "second": [50], "runs out": [1], "without the second": [100], "fits": [1], "in a batch": [30],
                          "third": [200], "after": [own], "in the child": [70]}


def test_a_larger_budget_loosens_nothing(koila):
    said, _ = koila("budgets", KOILA_MODE="track", KOILA_CPU_MEMORY="80MiB")
    assert [said[name] for name in ("before", "first", "third", "after")] == [["80"]] * 4


def test_snapshots_differ_by_what_was_made(koila):
    said, done = koila("snapshots")
    assert done.stdout.splitlines()[1:-1] == ["cpu: +4.0 MiB in +3 tensors", "  +4.0 MiB  +2  other  aten::zeros", "  +3.9 KiB  +1  other  aten::ones"]
    assert said["all"] == ["0"]


def test_snapshots_with_lines(koila):
    _, done = koila("snapshots", KOILA_STACKS="1")
    assert re.search(r"aten::zeros  \S*memory_program\S*", done.stdout), done.stdout


def parse(line):
    return dict(part.split("=", 1) for part in re.split(r" (?=\w+=)", line.removeprefix("event ")))


def test_events_tell_of_rescues_refusals_and_steps(koila, tmp_path):
    _, whole = koila("train")
    said, done = koila("events", tmp_path / "report.json", KOILA_CPU_MEMORY="24MiB")
    assert (said["subscribed"], said["runs out"]) == (["1"], ["1"])
    gradients = [float(re.search(r"gradient (\S+)", run.stdout)[1]) for run in (whole, done)]
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-4)

    events = [parse(line) for line in done.stdout.splitlines() if line.startswith("event ")]
    assert all(e["device"] == "cpu" and int(e["budget"]) == 24 * MI and e["fits"] == "1" for e in events)
    rescues, refusals, steps = ([e for e in events if e["kind"] == kind] for kind in "124")
    assert len(rescues) + len(refusals) + len(steps) == len(events)
    assert rescues[0]["op"].startswith("aten::") and rescues[0]["micro_batch_of"] == "1/1024" and rescues[0]["reason"] == ""
    assert [(e["step"], e["micro_batch_of"]) for e in steps] == [("1", "1/1024"), ("2", "1/1024")]
    (refusal,) = refusals
    assert (refusal["op"], refusal["step"]) == ("aten::empty", "2") and refusal["reason"].endswith(".")
    assert events[-1] == refusal, "in the order in which they happen"
    assert events.index(rescues[0]) < events.index(steps[0]) and int(steps[0]["rescues"]) == sum(e["step"] == "0" for e in rescues)

    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["steps"], report["rescues"]) == (2, len(rescues))


def test_functions_may_do_as_they_like(koila):
    said, done = koila("rude_listeners", **TRACK)
    assert ints(said) == {"runs out": [1, 1, 1], "calls": [7], "ran out within": [7], "ended itself after": [1], "on the main thread": [0], "budget after": [100]}
    assert done.stderr == "koila::on_event: the function threw: as it likes (said once)\n"


def test_the_child_of_a_fork_has_no_subscriptions(koila):
    said, _ = koila("in_a_fork", **TRACK)
    assert ints(said) == {"child": [0], "calls": [1]}


def test_a_static_subscription_hears_all(koila):
    said, _ = koila("with_a_static", **TRACK)
    assert ints(said) == {"calls": [5]}


def test_a_program_ends_whatever_its_functions_do(koila):
    said, _ = koila("without_an_end", **TRACK)
    assert ints(said) == {"subscribed": [1]}


def test_a_koila_that_stays_out_makes_no_figures_up(koila):
    said, done = koila("stays_out", KOILA_MODE="off")
    assert ints(said) == {"loaded": [1], "known": [0], "subscribed": [0]}
    assert [line.split(";")[0] for line in done.stderr.splitlines()] == [
        f"koila::{name}: koila is in this process and does not count memory on cpu" for name in ("ScopedBudget", "snapshot")]


@pytest.mark.parametrize("sort", ["1", "2"])
def test_a_linked_program_has_all_of_koila(tmp_path, sort):
    """Under both of the loader's orders of initialisation: the budget, the rescue and the report."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KOILA_") and name != "LD_PRELOAD"}
    report = tmp_path / "report.json"
    variables = {"KOILA_CPU_MEMORY": "24MiB", "KOILA_REPORT": f"stderr,{report}", "OMP_NUM_THREADS": "1", "GLIBC_TUNABLES": f"glibc.rtld.dynamic_sort={sort}"}
    done = subprocess.run([PROGRAM.with_name("memory_program_linked"), "train"], env=kept | variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "koila: rescued: out of memory in aten::" in done.stderr
    cpu = json.loads(report.read_text())["devices"]["cpu"]
    assert 0 < cpu["peak_bytes"] <= cpu["budget_bytes"] == 24 * MI
