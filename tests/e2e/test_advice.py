"""What adds up in a program, and what it was seen to do, from real processes."""

import functools
import json
import subprocess
import sys

import pytest

from harness import ROOT, clean_environment, koila_environment
from selection import only

E2E = ROOT / "tests" / "e2e"


def report_of(tmp_path, name, mode="rescue"):
    report = tmp_path / "report.json"
    environment = koila_environment(mode, KOILA_REPORT=str(report))
    process = subprocess.run([sys.executable, str(E2E / "advice_steps.py"), name], env=clean_environment(environment), capture_output=True, text=True, timeout=300)
    assert process.returncode == 0 and process.stderr == "", process.stderr
    return json.loads(report.read_text())


def line_of(text):
    return next(i for i, line in enumerate((E2E / "advice_steps.py").read_text().splitlines(), 1) if text in line)


def function(name):
    return f"{name}() at advice_steps.py:{line_of(f'def {name}(')}"


def size(holder):
    """Without the number of elements: it is that of the moment when koila looked."""
    words = holder.split(" of ")
    return " of ".join(["N" + word.lstrip("0123456789") if word[:1].isdigit() else word for word in words])


TENSORS = {
    "outputs_in_a_list": lambda: f"`outputs` (a list of N), a local variable of {function('outputs_in_a_list')}",
    "outputs_in_an_attribute": lambda: "`history` (a list of N), an attribute of a Trainer (__main__)",
    "cache_of_the_module": lambda: "`cache` (a dict of N), a variable of advice_steps.py",
    "closure_of_a_hook": lambda: f"`kept` (a list of N), in the closure of watch.hook() at advice_steps.py:{line_of('def hook(')}",
    "total_without_backward": lambda: f"`validation`, a local variable of {function('total_without_backward')}",
    "kept_in_cpp": lambda: "",
}


@pytest.mark.parametrize("name", only(["outputs_in_a_list", "kept_in_cpp"], TENSORS))
def test_tensors_that_add_up(tmp_path, name):
    leaks = [leak for leak in report_of(tmp_path, name)["leaks"] if leak["graph_nodes"] == 0]
    assert leaks, "nothing was found"
    assert {size(leak["holder"]) for leak in leaks} == {TENSORS[name]()}
    assert sum(leak["bytes_per_step"] for leak in leaks) >= 64 * 64 * 4


GRAPHS = {
    "running_total": lambda: f"`total`, a local variable of {function('running_total')}",
    "losses_in_a_list": lambda: f"`losses` (a list of N), a local variable of {function('losses_in_a_list')}",
}


@pytest.mark.parametrize("mode", only(["rescue"], ["rescue", "track"]))
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_that_add_up(tmp_path, name, mode):
    report = report_of(tmp_path, name, mode)
    assert [size(leak["holder"]) for leak in report["leaks"] if leak["graph_nodes"] > 0] == [GRAPHS[name]()]
    leak = next(leak for leak in report["leaks"] if leak["graph_nodes"] > 0)
    assert leak["bytes_per_step"] > 1000  # a dozen nodes
    assert "graph of every step" in report["next"] or "add up" in report["next"]


@pytest.mark.parametrize("mode", only(["rescue"], ["rescue", "track"]))
def test_nothing_adds_up(tmp_path, mode):
    assert report_of(tmp_path, "nothing", mode)["leaks"] == []


@functools.cache
def seen():
    process = subprocess.run([sys.executable, str(E2E / "facts_steps.py")], env=clean_environment(koila_environment("rescue", KOILA_REPORT="off")), cwd=ROOT,
                             capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_a_plain_program_shows_nothing():
    for name in ("nothing", "accumulating", "no_grad"):
        assert not any(seen()[name].values()), (name, seen()[name])


# Facts that the first step of each kind must show, by what was not there in the kind before it.
FACTS = {
    "zeroed": {"kept_gradients", "kept_gradients_bytes"},
    "zeroed_late": {"kept_gradients"},
    "autocast": {"autocast"},
    "checkpoint": {"checkpoints"},
    "reentrant": {"checkpoints"},
    "half": {"half_parameters_bytes"},
    "foreach": {"foreach_bytes"},
    "fused": {"fused_optimizer"},
    "evaluation": {"graph_in_evaluation", "graph_in_evaluation_bytes"},
}


@pytest.mark.parametrize("name", FACTS)
def test_what_a_program_was_seen_to_do(name):
    kinds = list(seen())
    before, after = seen()[kinds[kinds.index(name) - 1]], seen()[name]
    assert {fact for fact in after if after[fact] != before[fact]} == FACTS[name]


def test_figures_of_what_was_seen():
    facts = seen()["evaluation"]
    parameters = 4 * (64 * 64 + 64)
    assert facts["half_parameters_bytes"] == parameters * 2
    assert facts["foreach_bytes"] == parameters * 4
    assert facts["kept_gradients_bytes"] == parameters * 4
    assert facts["autocast"] == 20
    assert 20 < facts["checkpoints"] <= 40  # the reentrant kind is seen in the steps whose graph is walked
    assert facts["fused_optimizer"] == 20
    assert 512 * 64 * 4 * 8 <= facts["graph_in_evaluation_bytes"] <= 512 * 64 * 4 * 9
