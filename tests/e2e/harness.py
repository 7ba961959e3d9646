"""Runs a task plain and under koila, and compares everything that the two leave behind.

What counts as equal: for every array, max|a - b| <= tolerance * max(max|a|, floor). The tolerance is the task's, 1e-5 in float32 (and
1e-11 in float64). The floor is for arrays that are zero by nature, such as the gradient of a key's bias, and hold rounding noise only:
a tenth of the largest value among their like (all gradients of that step, all parameters, ...), so that what is let through is 1e-6 of
it, a few roundings of a float32. tests/e2e/test_harness.py holds plain PyTorch against itself by that measure. Integers, flags, and absent gradients have to be the same.
"""

import dataclasses
import functools
import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIBRARY = Path(os.environ.get("KOILA_LIBRARY", ROOT / "build" / "lib" / "libkoila.so"))


@dataclasses.dataclass(frozen=True)
class Case:
    family: str
    optimizer: str = "sgd"
    steps: int = 5
    rows: int = 0  # 0: the family's own
    seed: int = 0
    dtype: str = "float32"
    shuffle: bool = False  # permute the rows of every batch: the noise floor of plain PyTorch
    limit_from: int = 1  # the step at which budget and injection begin
    drops: bool = False  # the program lets go of a batch before it draws the next
    device: str = "cpu"  # or "cuda": simulated, see tests/cuda/device
    named: str = ""  # dimensions of the batch's tensors that the program names with torch.ops.koila.lazy, where there is koila; see job.py
    accumulate: int = 0  # plain gradient accumulation over so many rows at a time, as people write it by hand: wrong where rows are coupled

    @property
    def server(self):
        """The class of the process that runs it."""
        return Server

    @property
    def task(self):
        families()
        from task import FAMILIES
        return FAMILIES[self.family]

    @property
    def tolerance(self):
        if self.dtype == "float64" and self.task.tolerance_in_double:
            return self.task.tolerance_in_double
        return self.task.tolerance * (1e-6 if self.dtype == "float64" and self.task.tolerance <= 1e-5 else 1)


@functools.cache
def families(*modules):
    """The families by name: those of some modules, or all but the many small ones that have tests of their own."""
    import coupled  # noqa: F401
    import guesses  # noqa: F401
    import handed_out  # noqa: F401
    import indexed  # noqa: F401
    import kernels  # noqa: F401
    import models  # noqa: F401
    import opaque  # noqa: F401
    import policies  # noqa: F401
    import reads  # noqa: F401
    import real_models  # noqa: F401
    import refused  # noqa: F401
    import stages  # noqa: F401
    import styles  # noqa: F401
    import traps  # noqa: F401
    from task import FAMILIES
    return {name: task for name, task in FAMILIES.items()
            if (task.__module__ in modules if modules else task.__module__ not in ("opaque", "policies", "traps", "guesses", "handed_out", "indexed", "kernels"))}


# The modules of families that need torch and no other library.
OF_TORCH = ("models", "styles", "coupled", "reads", "refused", "stages")
# What these do is the CPU's own: lengths, NumPy and DLPack read its memory.
OF_THE_CPU = {"packed_sequence", "read_numpy", "read_dlpack", "read_metadata", "read_pointer"}


@dataclasses.dataclass
class Result:
    outcome: str  # "ok", "oom" (torch.OutOfMemoryError), "error" (any other exception), "crash" (signal, exit), "timeout"
    message: str
    arrays: dict
    peak: int | None = None
    fixed: int = 0
    loading: int = 0  # the peak while a batch is drawn, and that while a step runs; measured by `track` alone
    stepping: int = 0
    step: int = 0  # the step that failed
    requests: int = 0  # allocations from the step at which limits begin to the end, whatever the end was
    live: list = dataclasses.field(default_factory=list)
    allocations: list = dataclasses.field(default_factory=list)
    seconds: list = dataclasses.field(default_factory=list)
    figures: list = dataclasses.field(default_factory=list)  # (rescues, regions, micro-batch of the last region) so far after each step, where budgets change
    report: dict | None = None
    traceback: str = ""
    log: str = ""
    command: str = ""
    case: Case | None = None

    def describe(self):
        text = f"{self.outcome}: {self.message.strip()}"
        if self.outcome == "error":
            text += "\n" + self.traceback
        if self.log:
            text += "\n--- stderr\n" + self.log[-3000:]
        return text + "\n--- again with\n" + self.command

    @property
    def rescued(self):
        """How often koila rescued, by its own report."""
        return sum(event["count"] for event in (self.report or {}).get("oom_events", []) if event["outcome"] == "rescued")

    @property
    def regions(self):
        """How many regions ran in micro-batches, by koila's own report."""
        return (self.report or {}).get("regions_total", {}).get("count", 0)

    @property
    def reasons(self):
        return [refusal["reason"] for refusal in (self.report or {}).get("refusals", [])]


class Server:
    """A process that has imported torch under some environment, and forks for each task."""

    def __init__(self, environment):
        self.environment = environment
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(HERE / "job.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean_environment(environment))
        self.lock = threading.Lock()

    def run(self, case, budget, inject, timeout):
        with tempfile.TemporaryDirectory(prefix="koila-e2e-") as folder, self.lock:
            out = os.path.join(folder, "result")
            request = {"case": dataclasses.asdict(case), "budget": budget, "inject": inject, "out": out, "timeout": timeout}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            assert line, f"the server under {self.environment} ended with {self.process.wait()}"
            answer = json.loads(line)
            log = Path(out + ".log").read_text(errors="replace") if os.path.exists(out + ".log") else ""
            command = shell_command(self.environment, case, budget, inject)
            if answer["timeout"]:
                return Result("timeout", f"after {timeout} s", {}, log=log, command=command, case=case)
            if answer["signal"]:
                return Result("crash", signal.Signals(answer["signal"]).name, {}, log=log, command=command, case=case)
            if answer["exit"]:
                return Result("crash", f"exit {answer['exit']}", {}, log=log, command=command, case=case)
            with open(out, "rb") as file:
                found = pickle.load(file)
            known = {field.name for field in dataclasses.fields(Result)}
            return Result(**{k: v for k, v in found.items() if k in known}, log=log, command=command, case=case)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def clean_environment(extra):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
    # One thread: the order of sums is the same in every run, and two test workers do not fight over two cores.
    environment.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    environment.update(extra)
    return environment


def koila_environment(mode, microbatch=None, **more):
    assert LIBRARY.exists(), f"{LIBRARY} is not there: scripts/setup builds it"
    environment = {"LD_PRELOAD": str(LIBRARY), "KOILA_MODE": mode, "KOILA_REPORT": "off", "KOILA_RECORD": "off"}
    if microbatch:
        environment["KOILA_MICROBATCH"] = str(microbatch)
    environment.update(more)
    return environment


def shell_command(environment, case, budget, inject):
    """A command that runs the case alone, in the foreground."""
    parts = [f"{k}={v}" for k, v in environment.items() if k not in ("LD_PRELOAD", "KOILA_REPORT", "KOILA_RECORD")]
    command = " ".join(parts + ["python tests/e2e/one.py", case.family])
    for field in dataclasses.fields(Case):
        value = getattr(case, field.name)
        if field.name != "family" and value != field.default:
            name = field.name.replace("_", "-")
            command += f" --{name}" if value is True else f" --{name} {value}"
    if budget:
        command += f" --budget {shlex.quote(str(budget))}"
    if inject:
        command += f" --inject {inject}"
    return command


_servers = {}


def run(case, mode="plain", *, microbatch=None, budget=None, inject=None, timeout=60, **environment):
    """Runs `case`. Modes: plain (no koila), track (koila counts and enforces), rescue, lazy. `budget`: bytes, or [(step, bytes), ...] where it changes
    before those steps."""
    extra = {} if mode == "plain" else koila_environment(mode, microbatch, **environment)
    if case.device != "cpu":
        extra |= environment
    key = (case.server, *sorted(extra.items()))
    if key not in _servers:
        _servers[key] = case.server(extra)
    return _servers[key].run(case, budget, inject, timeout)


@functools.lru_cache(maxsize=256)
def plain(case):
    """The run that all others are measured against; it must succeed."""
    result = run(case)
    assert result.outcome == "ok", f"plain PyTorch fails: {result.describe()}"
    return result


def in_another_order(case):
    """Plain PyTorch with the rows of every batch permuted, as a function for assert_equal; None where rows have an order."""
    return (lambda: plain(dataclasses.replace(case, shuffle=True))) if case.task.symmetric else None


@functools.lru_cache(maxsize=256)
def tracked(case):
    """The same under koila's accounting: peak and fixed memory."""
    result = run(case, "track")
    assert result.outcome == "ok", f"tracking alone fails: {result.describe()}"
    return result


def stop_servers():
    for server in _servers.values():
        server.stop()
    _servers.clear()


# ---- comparison --------------------------------------------------------------------------------------------------------------

FLOOR_OF_GROUP = 1e-1
FLOOR_OF_VALUE = 1e-2


def group_of(name):
    """Arrays that are alike: 'step3/gradient/fc.weight' belongs to 'step3/gradient'. None: on its own."""
    parts = name.split("/")
    if len(parts) < 3:
        return None
    return "/".join(parts[:3] if parts[1] == "optimizer" else parts[:2])


def differences(expected, actual, tolerance=1e-5):
    """[(how many times over the tolerance, name, explanation)], worst first; empty when equal. Tolerance 0: equal to the bit."""
    largest = {}
    for name, array in expected.items():
        group = group_of(name)
        if group and array is not None and array.size and array.dtype.kind in "fc":
            finite = array[numpy.isfinite(array)]
            largest[group] = max(largest.get(group, 0.0), float(numpy.abs(finite).max()) if finite.size else 0.0)
    found = []
    for name in sorted(expected.keys() | actual.keys()):
        if name not in expected or name not in actual:
            found.append((numpy.inf, name, "missing" if name in expected else "not in the plain run"))
            continue
        a, b = expected[name], actual[name]
        if a is None or b is None:
            if a is not b:
                found.append((numpy.inf, name, "None" if b is None else "not None"))
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            found.append((numpy.inf, name, f"{b.dtype}{list(b.shape)}, plain {a.dtype}{list(a.shape)}"))
            continue
        if tolerance == 0 or a.dtype.kind not in "fc":
            if a.tobytes() != b.tobytes() and not numpy.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
                unequal = int((a != b).sum())
                found.append((numpy.inf, name, f"{unequal} of {a.size} elements differ"))
            continue
        if not a.size:
            continue
        finite = numpy.isfinite(a)
        if not numpy.array_equal(finite, numpy.isfinite(b)) or not numpy.array_equal(a[~finite], b[~finite], equal_nan=True):
            found.append((numpy.inf, name, "infinities or NaN differ"))
            continue
        if not finite.any():
            continue
        error = float(numpy.abs(a[finite].astype(numpy.complex128) - b[finite]).max())
        group = group_of(name)
        floor = FLOOR_OF_GROUP * largest.get(group, 0.0) if group else FLOOR_OF_VALUE
        scale = max(float(numpy.abs(a[finite]).max()), floor)
        # A second moment is a sum of squares of gradients, which doubles their error.
        if error > tolerance * scale * (2 if "/exp_avg_sq/" in name else 1):
            found.append((error / (tolerance * scale) if scale else numpy.inf, name,
                          f"off by {error:.3g}, relative {error / scale if scale else numpy.inf:.3g}, largest {numpy.abs(a[finite]).max():.3g}"))
    return sorted(found, key=lambda difference: -difference[0])


def worst(expected, actual):
    """(relative error, name) of the worst float array, by the same scale."""
    found = [d for d in differences(expected, actual, 1e-30)]
    return (found[0][0] * 1e-30, found[0][1]) if found else (0.0, "")


def assert_equal(expected, actual, tolerance=1e-5, noise=None):
    """`actual` is a whole run with the numbers of `expected`. `noise`: a function that gives plain PyTorch with its sums in another order.
    An array that this alone takes beyond the tolerance (a gradient that nearly cancels) may be off by twice as much; no other may."""
    assert actual.outcome == "ok", actual.describe()
    found = differences(expected.arrays, actual.arrays, tolerance)
    if found and noise:
        own = {name: excess for excess, name, _ in differences(expected.arrays, noise().arrays, tolerance) if excess < numpy.inf}
        found = [difference for difference in found if difference[0] > 2 * own.get(difference[1], 0)]
    if found:
        lines = [f"{name}: {text}" for _, name, text in found[:8]]
        raise AssertionError(f"{len(found)} of {len(expected.arrays)} arrays differ from plain, worst first:\n  "
                             + "\n  ".join(lines) + f"\n{actual.log[-2000:]}\n--- again with\n{actual.command}")


def assert_exact_or_untouched(exact, refused, actual, tolerance=1e-5, noise=None):
    """The one principle. `exact`: the plain run without limits; `refused`: a function that gives the plain run with the same limits.

    Untouched after steps that koila rescued cannot mean equal to that plain run, which died at the first of them. It means: what was
    recorded up to the refusal is what the run without limits records, and the state left behind is one in which plain PyTorch, failing
    somewhere in that very step, would have left it. Where nothing was rescued it means that to the bit, with plain's message."""
    if actual.outcome == "ok":
        assert_equal(exact, actual, tolerance, noise)
        return "exact"
    assert actual.outcome == "oom", actual.describe()
    expected = refused()
    assert expected.outcome == "oom", f"koila refuses what plain PyTorch can do: {actual.describe()}"
    again = f"\n{actual.log[-2000:]}\n--- again with\n{actual.command}"
    if not actual.rescued:
        assert actual.step == expected.step, f"fails in step {actual.step}, plain in step {expected.step}{again}"
        if (without_use(actual.message) == without_use(expected.message)
                and not differences(expected.arrays, actual.arrays, tolerance=0)):
            return "refused"
        tolerance = 0
    assert actual.step >= expected.step, f"fails in step {actual.step}, plain not before step {expected.step}{again}"
    assert_recorded(exact, actual, tolerance, again)
    # What koila holds beside plain may make another allocation of the step the first that does not fit; and a value that it computes only
    # when the program reads it may not fit where plain allocates nothing at all, between a plain error that recorded less and one that
    # recorded more.
    recorded = records_of(actual)
    less = more = False
    closest = None
    for failure in plain_failures(actual.case, actual.step):
        found = differences(state_of(failure), state_of(actual), tolerance)
        if not found:
            if actual.rescued:
                less = less or records_of(failure) <= recorded
                more = more or records_of(failure) >= recorded
                if less and more:
                    return "refused"
            elif wanted(failure.message) == wanted(actual.message) and records_of(failure) == recorded:
                return "refused"
            found = [(0, "what was recorded", f"{sorted(recorded)}, plain {sorted(records_of(failure))}"),
                     (0, "message", f"{first_line(actual.message)}, plain {first_line(failure.message)}")]
        if closest is None or len(found) < len(closest[0]):
            closest = found, failure
    found, failure = closest
    lines = [f"{name}: {text}" for _, name, text in found[:8]]
    raise AssertionError(f"refused in step {actual.step}, but no plain error in that step leaves this state; the closest is\n"
                         f"  {failure.command}\nfrom which differ\n  " + "\n  ".join(lines) + again)


def state_of(result):
    return {name: array for name, array in result.arrays.items() if name.startswith("final/")}


def records_of(result):
    return {name for name in result.arrays if name.startswith("step")}


def assert_recorded(exact, actual, tolerance, again=""):
    """What a run that failed recorded up to then: all of the steps before, and nothing but plain's values in the step itself."""
    expected = {}
    for name, array in exact.arrays.items():
        step = re.match(r"step(\d+)/", name)
        if step and (int(step[1]) < actual.step or int(step[1]) == actual.step and name in actual.arrays):
            expected[name] = array
    found = differences(expected, {name: actual.arrays[name] for name in records_of(actual)}, tolerance)
    if found:
        lines = [f"{name}: {text}" for _, name, text in found[:8]]
        raise AssertionError(f"refused in step {actual.step}, but what was recorded up to then is not plain's:\n  "
                             + "\n  ".join(lines) + again)


def plain_failures(case, step, sample=40, at_most=1000):
    """The plain runs that fail in this very step, at one allocation each: a sample of its allocations first, then those in between. One
    more fails at the first allocation after the step, or not at all after the last one: the state between two steps."""
    within = dataclasses.replace(case, limit_from=step)
    # The last step's allocations go on into what the program does after the loop.
    whole = tracked(within)
    total = whole.requests if step == case.steps else whole.allocations[0]
    first = range(1, total + 1, max(1, -(-total // sample)))
    rest = sorted(set(range(1, total + 1)) - set(first))
    for number in [*first, total, *rest[::max(1, -(-len(rest) // at_most))]]:
        failure = plain_failure(within, number)
        if failure.outcome == "oom" and failure.step == step:
            yield failure
    yield plain(case) if step == case.steps else plain_failure(dataclasses.replace(case, limit_from=step + 1), 1)


@functools.lru_cache(maxsize=1024)
def plain_failure(case, number):
    return run(case, "track", inject=f"nth:{number}")


def without_use(message):
    """The first line of an out-of-memory error, without the bytes in use: koila may hold a few of its own."""
    return re.sub(r"; [\d.]+ \w+ (of|are)\b", r"; \1", first_line(message))


def wanted(message):
    """The bytes that an out-of-memory error names as asked for, as text."""
    found = re.search(r"Tried to allocate ([\d.]+ \w+)", message)
    return found[1] if found else first_line(message)


def first_line(text):
    return text.strip().split("\n")[0]
