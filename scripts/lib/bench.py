"""Paired measurement: the same workload in two processes, in turn, and the median of the ratios."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("KOILA_LIBRARY", ROOT / "build" / "lib" / "libkoila.so"))


def environment(**settings):
    """The environment without any koila but for `settings`, which preload it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
    clean.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    if settings:
        clean.update({"LD_PRELOAD": str(LIBRARY), "KOILA_REPORT": "off"} | settings)
    return clean


class Worker:
    def __init__(self, **settings):
        self.process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("bench_worker.py"))], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment(**settings))

    def run(self, workload, repetitions=1):
        """(seconds, peak bytes or None, bytes alive or None)"""
        return self.ask(workload, repetitions)

    def limit(self, budget):
        """The budget in bytes from now on; 0: none."""
        self.ask("budget", budget)

    def report(self):
        return self.ask("report", 0)

    def ask(self, what, number):
        self.process.stdin.write(f"{what} {number}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Pair:
    """Medians over rounds of A and B in turn, the order swapped each round."""

    def __init__(self, a, b, rounds):
        """a, b: functions that do one measurement and return seconds."""
        a(), b()
        self.a, self.b = [], []
        for i in range(rounds):
            if i % 2:
                second, first = b(), a()
            else:
                first, second = a(), b()
            self.a.append(first)
            self.b.append(second)

    @property
    def ratio(self):
        return statistics.median(b / a for a, b in zip(self.a, self.b))

    @property
    def spread(self):
        """The quartiles of the ratio."""
        quartiles = statistics.quantiles([b / a for a, b in zip(self.a, self.b)], n=4)
        return quartiles[0], quartiles[2]

    @property
    def difference(self):
        return statistics.median(b - a for a, b in zip(self.a, self.b))

    @property
    def medians(self):
        return statistics.median(self.a), statistics.median(self.b)


def machine():
    """The processor, cores in use, and torch, in a line."""
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown processor")
    import torch
    return f"{model}, one thread, torch {torch.__version__}, Python {sys.version.split()[0]}"
