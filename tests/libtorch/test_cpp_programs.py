"""What C++ programs do in a training step (traps.cc): each is exact or refused, where nothing runs out, in micro-batches, and in budgets."""

import dataclasses
import subprocess

import pytest
from cpp_programs import PROGRAM, Case, budget_of, every_program, refused_run

from harness import assert_equal, assert_exact_or_untouched, clean_environment, differences, koila_environment, plain, run

# What ends the process, and what it does beside has tests of its own.
PROCESS = {"exits_in_the_step", "statics"}
PROGRAMS = sorted(set(every_program()) - PROCESS)

# What a step in micro-batches cannot do: with KOILA_MICROBATCH too it is an out-of-memory.
REFUSED = {
    "read_on_another_thread": "another thread",
    "read_storage": "the storage of a tensor",
    "saved_in_the_step": "the storage of a tensor",
    "input_written_through_pointer": "through a pointer or .data",
    "write_data_in_place": "through a pointer or .data",
    "write_data_before_tanh": "through a pointer or .data",
    "write_row_of_data": "through a pointer or .data",
    "write_through_accessor": "through a pointer or .data",
    "write_through_pointer": "through a pointer or .data",
}
# A loader's worker that runs out says so in an error of PyTorch's own.
WRAPS_ERRORS = {"loader_with_workers"}

# torch::load takes its memory without an operator, so koila hears nothing of it that it could say.
LOADS = "saved_in_the_step"


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_runs_out(program):
    """The same to the bit: pointers are looked at, and that is all."""
    case = Case(program)
    assert_equal(plain(case), run(case, "rescue"), tolerance=0)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_micro_batch(program, rows):
    case = Case(program, "adamw")
    result = run(case, "rescue", microbatch=rows)
    if program in REFUSED and result.outcome == "oom":
        assert any(REFUSED[program] in reason for reason in result.reasons), result.describe()
        return
    assert_equal(plain(case), result, case.tolerance)


@pytest.mark.parametrize("share", [0.25, 0.6])
@pytest.mark.parametrize("program", sorted(set(PROGRAMS) - {"threads_beside"}))
def test_budget(program, share):
    case = Case(program, rows=256)
    budget = budget_of(case, share)
    result = run(case, "rescue", budget=budget)
    if program in WRAPS_ERRORS and result.outcome == "error":
        assert "out of memory" in result.message
        return
    if run(case, "track", budget=budget).outcome == "ok":  # it catches the error
        assert_equal(plain(case), result, case.tolerance)
        return
    if assert_exact_or_untouched(plain(case), refused_run(case, budget=budget), result, case.tolerance) == "refused" and program != LOADS:
        assert any(result.reasons), f"no reason in the report\n{result.command}"


def test_what_is_refused_can_be_caught():
    """The program skips the batch, as it does without koila."""
    case = Case("batch_that_ran_out_is_skipped", rows=256)
    budget = budget_of(case, 0.5)
    track = run(case, "track", budget=budget)
    assert_equal(track, run(case, "rescue", budget=budget, KOILA_LADDER="3"), tolerance=0)
    assert "step1/skipped" in track.arrays and "step1/loss" not in track.arrays


@pytest.mark.parametrize("limits", [{"budget": 1.5}, {"budget": 0.7}, {"inject": "every:37"}, {"inject": "random:0.02:3"}], ids=str)
def test_other_threads_are_untouched(limits):
    """koila rescues the thread that loaded torch. The others have their numbers, or their own out-of-memory: what they recorded is plain's."""
    case = Case("threads_beside", rows=64)
    if "budget" in limits:
        limits = {"budget": budget_of(case, limits["budget"])}
    result = run(case, "rescue", **limits)
    assert result.outcome in ("ok", "oom"), result.describe()
    expected = plain(case).arrays
    kept = {name: array for name, array in result.arrays.items() if result.outcome == "ok" or not name.startswith("final/")}
    found = differences({name: expected[name] for name in kept}, kept, case.tolerance)
    assert not found, f"{found[:5]}\n{result.command}"
    assert any(name.startswith("beside") for name in kept) or "budget" in limits


def process(program, budget=None, **environment):
    """The completed process of one program in the foreground, and what it prints."""
    command = [PROGRAM, program, "--rows", "256"] + (["--budget", str(budget)] if budget else [])
    return subprocess.run(command, env=clean_environment(environment), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("microbatch", [None, 5])
@pytest.mark.parametrize("program, status", [("exits_in_the_step", 7), ("statics", 0)])
def test_the_process_ends_as_it_would(program, status, microbatch):
    """Tensors that are alive while statics are destroyed, and exit() in the middle of a step that runs in micro-batches."""
    expected = process(program)
    assert expected.returncode == status
    done = process(program, **koila_environment("rescue", microbatch))
    assert (done.returncode, done.stderr) == (status, "")
    for name, number in losses(expected).items():
        assert abs(losses(done)[name] - number) < 1e-11


@pytest.mark.parametrize("program, status", [("exits_in_the_step", 7), ("statics", 0)])
def test_the_process_ends_as_it_would_in_a_budget(program, status):
    # A program that keeps its outputs in statics needs more with each step.
    budget = budget_of(dataclasses.replace(Case("cnn"), family="item_of_every_loss", rows=256), 0.6) + (1 << 17 if program == "statics" else 0)
    done = process(program, budget, **koila_environment("rescue"))
    assert done.returncode == status and "rescued" in done.stderr, done.stderr
    for name, number in losses(process(program)).items():
        assert abs(losses(done)[name] - number) < 1e-11


def losses(done):
    return {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("step")}
