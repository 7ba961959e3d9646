"""Runs jobs (jobs.py) on two ranks, each a process of its own, with koila on some of them.

A group of processes meets at a file. Each run has a time limit for both processes, so that a hang is a failure and not the end of the tests.
"""

import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIBRARY = Path(os.environ.get("KOILA_LIBRARY", ROOT / "build" / "lib" / "libkoila.so"))
RANKS = 2


@dataclasses.dataclass
class Result:
    """Of one job on one rank."""

    outcome: str  # "ok", "oom", "error", or "missing": the process ended before it
    message: str = ""
    numbers: dict = dataclasses.field(default_factory=dict)  # name: tensor
    collectives: int = 0  # that the rank's process group has been given
    peak: int | None = None
    regions: int = 0  # that ran in micro-batches so far
    rescued: int = 0
    reasons: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Run:
    ranks: list  # by rank: {job: Result}
    exits: list  # by rank: the process's exit status; None: it had to be killed
    logs: list  # by rank: what it wrote to stderr

    def describe(self):
        return "\n".join(f"--- rank {rank}: exit {self.exits[rank]}\n{self.logs[rank][-3000:]}" for rank in range(RANKS))


def run(*jobs, koila=(0,), timeout=240, **settings):
    """The jobs, one after the other in the same two processes. `koila`: the ranks that have it; `settings`: its variables there."""
    with tempfile.TemporaryDirectory(prefix="koila-ranks-") as folder:
        processes = []
        for rank in range(RANKS):
            environment = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
            environment.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", GLOO_SOCKET_IFNAME="lo")
            if rank in koila:
                environment.update(LD_PRELOAD=str(LIBRARY), KOILA_REPORT="off", KOILA_RECORD="off", **settings)
            log = open(os.path.join(folder, f"log{rank}"), "w")
            processes.append(subprocess.Popen([sys.executable, str(HERE / "jobs.py"), str(rank), folder, *jobs], env=environment, stdout=log, stderr=log))
        deadline = time.monotonic() + timeout
        exits = []
        for process in processes:
            try:
                exits.append(process.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                exits.append(None)
                process.kill()
                process.wait()
        ranks, logs = [], []
        for rank in range(RANKS):
            logs.append(Path(folder, f"log{rank}").read_text(errors="replace"))
            found = {}
            for job in jobs:
                path = Path(folder, f"{job}.{rank}")
                found[job] = Result(**pickle.loads(path.read_bytes())) if path.exists() else Result("missing")
            ranks.append(found)
        return Run(ranks, exits, logs)


def differences(expected, actual, tolerance):
    """What of a job's numbers is not the plain run's, in words."""
    found = []
    for name in sorted(expected.numbers.keys() | actual.numbers.keys()):
        a, b = expected.numbers.get(name), actual.numbers.get(name)
        if a is None or b is None:
            if a is not b:
                found.append(f"{name}: {'missing' if b is None else 'not in the plain run'}")
        elif a.shape != b.shape or a.dtype != b.dtype:
            found.append(f"{name}: {b.dtype}{list(b.shape)}, plain {a.dtype}{list(a.shape)}")
        elif not (a.double() - b.double()).abs().max() <= tolerance * max(1.0, a.double().abs().max().item()):
            found.append(f"{name}: off by {(a.double() - b.double()).abs().max().item():.3g}, largest {a.double().abs().max().item():.3g}")
    return found


def assert_as_plain(plain, under_koila, job, tolerance=1e-9):
    """The numbers of the plain run on both ranks, and as many collectives."""
    for rank in range(RANKS):
        expected, actual = plain.ranks[rank][job], under_koila.ranks[rank][job]
        assert expected.outcome == "ok", f"plain PyTorch fails in {job}, rank {rank}: {expected.message}\n{plain.describe()}"
        assert actual.outcome == "ok", f"{job}, rank {rank}: {actual.outcome}: {actual.message}\n{under_koila.describe()}"
        found = differences(expected, actual, tolerance)
        assert not found, f"{job}, rank {rank}: " + "; ".join(found[:6]) + "\n" + under_koila.describe()
        assert actual.collectives == expected.collectives, f"{job}, rank {rank}: {actual.collectives} collectives, plain {expected.collectives}"
