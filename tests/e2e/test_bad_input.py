"""Settings that make no sense: one clear line each, and the program runs on."""

import subprocess
import sys

import pytest

from harness import clean_environment, koila_environment
from selection import in_full

PROGRAM = """
import torch
model = torch.nn.Linear(8, 4)
loss = model(torch.randn(6, 8)).square().mean()
loss.backward()
print("done", model.weight.grad.shape)
"""


def python(program=PROGRAM, **environment):
    settings = {**koila_environment("rescue"), **environment}
    return subprocess.run([sys.executable, "-c", program], env=clean_environment(settings), capture_output=True, text=True, timeout=120)


def lines_about(text, name):
    return [line for line in text.splitlines() if name in line]


@pytest.mark.parametrize("name, value", [
    ("KOILA_CPU_MEMORY", "200Foo"),
    in_full(("KOILA_CPU_MEMORY", "-5MiB")),
    ("KOILA_CPU_MEMORY", ""),
    in_full(("KOILA_CPU_MEMORY", "99999999999999999999GiB")),
    ("KOILA_MODE", "resuce"),
    ("KOILA_MICROBATCH", "many"),
    in_full(("KOILA_MICROBATCH", "0")),
    ("KOILA_INJECT_OOM", "often"),
    in_full(("KOILA_LOG", "loud")),
])
def test_bad_value_is_named_and_the_program_runs_on(name, value):
    result = python(**{name: value})
    assert result.returncode == 0 and result.stdout.startswith("done"), result.stderr
    said = lines_about(result.stderr, name)
    if value == "" and not said:
        return  # an empty variable may count as unset
    assert len(said) == 1, result.stderr
    assert value in said[0]


def test_unknown_variable_is_met_with_the_nearest_name():
    result = python(KOILA_MICROBACH="4")
    assert result.returncode == 0 and result.stdout.startswith("done"), result.stderr
    said = lines_about(result.stderr, "KOILA_MICROBACH")
    assert len(said) == 1 and "KOILA_MICROBATCH" in said[0], result.stderr


def test_strict_refuses_to_work_but_not_the_program():
    result = python(KOILA_STRICT="1", KOILA_CPU_MEMORY="200Foo")
    assert result.returncode == 0 and result.stdout.startswith("done"), result.stderr
    assert len(lines_about(result.stderr, "KOILA_CPU_MEMORY")) == 1


def test_report_that_cannot_be_written():
    result = python(KOILA_REPORT="/nonexistent/folder/report.json")
    assert result.returncode == 0 and result.stdout.startswith("done"), result.stderr
    assert len(lines_about(result.stderr, "/nonexistent/folder")) == 1, result.stderr


def test_log_file_that_cannot_be_written():
    result = python(KOILA_LOG_FILE="/dev/null/folder/log")
    assert result.returncode == 0 and result.stdout.startswith("done"), result.stderr
    assert len(lines_about(result.stderr, "/dev/null/folder")) == 1, result.stderr


@pytest.mark.parametrize("suffix", ["json", "txt"])
def test_report_is_written_where_asked(tmp_path, suffix):
    result = python(KOILA_REPORT=f"{tmp_path}/report-%p.{suffix}")
    assert result.returncode == 0 and result.stderr == "", result.stderr
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    assert "%p" not in path.name and ("peak" in text)


def test_error_of_the_program_is_its_own():
    """An exception, an exit code, and what is printed are as without koila."""
    result = python("import torch, sys; torch.ones(3); print('out'); sys.exit(7)")
    assert (result.returncode, result.stdout, result.stderr) == (7, "out\n", "")
    result = python("import torch; torch.ones(3) + torch.ones(4)")
    assert result.returncode == 1 and "must match the size" in result.stderr


def test_out_of_memory_without_rescue_is_an_ordinary_error():
    program = "import torch\ntry:\n    torch.ones(1000, 1000)\nexcept torch.OutOfMemoryError as e:\n    print('caught', type(e).__name__)"
    result = python(program, KOILA_CPU_MEMORY="1MiB")
    assert result.returncode == 0 and result.stdout == "caught OutOfMemoryError\n", result.stderr


def test_off_is_off():
    result = python(KOILA_MODE="off", KOILA_CPU_MEMORY="1KiB", KOILA_REPORT="stderr")
    assert result.returncode == 0 and result.stdout.startswith("done") and result.stderr == "", result.stderr
