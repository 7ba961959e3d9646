"""C++ training programs (traps.cc, trainers.cc) as cases of tests/e2e/harness.py: run plain and under koila by one process that forks for each."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KOILA_BUILD", ROOT / "build"))
PROGRAM = BUILD / "tests" / "libtorch" / "training_job"
sys.path.append(str(ROOT / "tests" / "e2e"))

from harness import Result, clean_environment, run, tracked  # noqa: E402

TRAINERS = ["cnn", "transformer", "lstm"]
COUPLED = ["batch_norm"]


def every_program():
    return subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True).stdout.split()


@dataclasses.dataclass(frozen=True)
class Task:
    """What harness.py asks of a task."""

    tolerance: float


@dataclasses.dataclass(frozen=True)
class Case:
    family: str
    optimizer: str = "sgd"
    steps: int = 3
    rows: int = 11  # a prime: of the micro-batches only 1 divides it
    dtype: str = "float64"
    limit_from: int = 1  # the step at which budget and injection begin
    device = "cpu"

    @property
    def server(self):
        return Server

    @property
    def task(self):
        return Task(self.tolerance)

    @property
    def tolerance(self):
        return 1e-11 if self.dtype == "float64" else 1e-5


class Server:
    """A C++ process under some environment that forks for each case."""

    def __init__(self, environment):
        self.environment = environment
        self.process = subprocess.Popen([PROGRAM, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment(environment))
        self.lock = threading.Lock()

    def run(self, case, budget, inject, timeout):
        with tempfile.TemporaryDirectory(prefix="koila-cpp-") as folder, self.lock:
            out = Path(folder, "result")
            words = [case.family, case.optimizer, case.steps, case.limit_from, case.rows, case.dtype, budget or 0, inject or "-", out, timeout]
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            assert line, f"the server under {self.environment} ended with {self.process.wait()}"
            number, status, killed = map(int, line.split())
            log = out.with_suffix(".log").read_text(errors="replace") if out.with_suffix(".log").exists() else ""
            about = {"log": log, "command": self.command(case, budget, inject), "case": case}
            if killed:
                return Result("timeout", f"after {timeout} s", {}, **about)
            if number:
                return Result("crash", signal.Signals(number).name, {}, **about)
            if status:
                return Result("crash", f"exit {status}", {}, **about)
            report = out.with_suffix(".json")
            return Result(**parse(out.read_bytes()), report=json.loads(report.read_text()) if report.exists() else None, **about)

    def command(self, case, budget, inject):
        """A command that runs the case alone, in the foreground."""
        parts = [f"{k}={v}" for k, v in self.environment.items() if k not in ("KOILA_REPORT", "KOILA_RECORD")]
        parts += ["OMP_NUM_THREADS=1", str(PROGRAM), case.family]
        for field in dataclasses.fields(Case)[1:]:
            parts.append(f"--{field.name.replace('_', '-')} {getattr(case, field.name)}")
        return " ".join(parts) + (f" --budget {budget}" if budget else "") + (f" --inject {inject}" if inject else "")

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def parse(data):
    """What job.cc wrote."""
    head, _, body = data.partition(b"\nend\n")
    outcome, message, figures, allocations, live, *names = head.decode(errors="replace").split("\n")
    step, peak, requests = map(int, figures.split())
    arrays, at = {}, 0
    for line in names:
        name, dtype, size, *sizes = line.split()
        if dtype == "none":
            arrays[name] = None
            continue
        arrays[name] = numpy.frombuffer(body, dtype=dtype, count=int(numpy.prod([int(n) for n in sizes], dtype=int)), offset=at).reshape([int(n) for n in sizes])
        at += int(size)
    return {"outcome": outcome, "message": message, "arrays": arrays, "step": step, "peak": peak, "requests": requests,
            "allocations": [int(n) for n in allocations.split()], "live": [int(n) for n in live.split()]}


def budget_of(case, share):
    """What is in use between the steps, and a share of what a step takes beside; measured by koila without a limit."""
    plain = tracked(case)
    between = max(plain.live)
    return between + int(share * (plain.peak - between))


def refused_run(case, **limits):
    """The plain run under the same limits, as a function for assert_exact_or_untouched."""
    return lambda: run(case, "track", **limits)
