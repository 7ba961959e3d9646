"""Every out-of-memory that the program gets is in the report, with its reason, and has a line of koila's: whatever threw it, and once."""

import json
import subprocess
import sys

import pytest

from harness import ROOT, clean_environment, koila_environment
from selection import only

E2E = ROOT / "tests" / "e2e"


def run(tmp_path, name, **more):
    """How many errors the program got, koila's report, and what stood on stderr."""
    report = tmp_path / "report.json"
    environment = koila_environment("rescue", KOILA_LADDER="0,1", KOILA_CPU_MEMORY="24MiB", KOILA_REPORT=str(report), **more)
    process = subprocess.run([sys.executable, str(E2E / "failure_steps.py"), name], env=clean_environment(environment), capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return int(process.stdout.split()[-1]), json.loads(report.read_text()), [line for line in process.stderr.splitlines() if line.startswith("koila:")]


# And a word of the reason.
FAILURES = {
    "dispatch_mode": "dispatch mode",
    "dispatch_mode_that_catches": "caught",
    "jagged": "tensor subclass",
    "strided_nested": "nested",
    "subclass": "tensor subclass",
    "distributed_tensor": "tensor subclass",
    "compiled": "compiled graph",
    "compiled_backward": "a compiled graph",
    "numbers_from_a_list": "calls the allocator itself",
    "plain_operator": "computed nothing yet",
    "a_model_too_large": "computed nothing yet",
    "autograd_function": "",
    "hook_that_catches": "",
    "create_graph": "",
    "another_thread": "thread",
}


@pytest.mark.parametrize("name", only(["dispatch_mode", "compiled", "hook_that_catches"], FAILURES))
def test_told_once(tmp_path, name):
    got, report, lines = run(tmp_path, name)
    assert got > 0, "nothing ran out"
    refused = [event for event in report["oom_events"] if event["outcome"] == "refused"]
    assert sum(event["count"] for event in refused) == got, refused
    assert all(event["reason"] for event in refused)
    assert any(FAILURES[name] in event["reason"] for event in refused), refused
    assert len([line for line in lines if line.startswith("koila: refused")]) == len(refused), lines
    assert not any("never reached" in advice for advice in map(str, report.get("advice", []))), report["advice"]


def test_a_rescue_is_no_refusal(tmp_path):
    """A backward pass under a mode is rescued where it can be; what the program got otherwise is told."""
    got, report, lines = run(tmp_path, "dispatch_mode_in_backward")
    assert sum(event["count"] for event in report["oom_events"] if event["outcome"] == "refused") == got
    assert report["oom_events"], "nothing ran out"


def test_steps_of_a_compiled_program(tmp_path):
    """What torch.compile records for itself is no step."""
    got, report, lines = run(tmp_path, "compiled_with_room")
    assert (got, report["steps"], lines) == (0, 3, [])
