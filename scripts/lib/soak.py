"""Thousands of steps under budgets that change at random, beside plain PyTorch: the same numbers, and nothing that grows.

Two processes train the same small model in float64 with Adam, in turn, some steps at a time: one plain, and one under koila, whose budget goes up and down
between no limit and a sixth of what a step takes. Batch norm cuts the model into stages, so that koila keeps what lies between them outside
memory when there is little of it.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch

from bench import environment
from koila_abi import Koila

ROWS, WIDTH, CLASSES = 512, 12, 5
TOLERANCE = 1e-9
KIB = 2 ** 10
MAX_LOG_LINES = 500
MAX_REPORT = 2 ** 20


class Training:
    """The model, and a step at a time."""

    def __init__(self):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(),
                                         torch.nn.Linear(32, CLASSES))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, eps=1e-4)
        self.loss = 0.0

    def step(self, rows=ROWS):
        x, y = torch.randn(rows, WIDTH), torch.randint(CLASSES, (rows,))
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss += loss.item()

    def state(self):
        found = {f"parameter {name}": t for name, t in self.model.named_parameters()} | {f"buffer {name}": t for name, t in self.model.named_buffers()}
        for i, values in enumerate(self.optimizer.state.values()):
            found |= {f"optimizer {i} {name}": t for name, t in values.items()}
        return {name: t.detach().numpy().copy() for name, t in found.items()} | {"sum of losses": numpy.asarray(self.loss)}


class Budgets:
    """Up and down at random: none, comfortable, or so little that hardly more than a few rows fit; for a few steps each."""

    def __init__(self, koila, training, seed):
        self.koila, self.random, self.left, self.changes = koila, random.Random(seed), 0, 0
        parameters = sum(p.nbytes for p in training.model.parameters())
        generator = torch.get_rng_state()
        trial = Training()
        for _ in range(2):
            koila.reset_peak()
            trial.step()
        whole = koila.peak() - koila.live()
        torch.set_rng_state(generator)
        # Parameters, gradients, and Adam's two moments. What is no part of a stage runs at full batch, at most a sixth.
        fixed = 4 * parameters
        self.low, self.high = fixed + whole // 6, fixed + int(1.5 * whole)

    def before_step(self):
        if self.left:
            self.left -= 1
            return
        self.left = self.random.randrange(1, 25)
        self.changes += 1
        what = self.random.random()
        self.koila.limit(0 if what < 0.1 else self.low if what < 0.25 else self.random.randrange(self.low, self.high))


def differences(expected, actual):
    """[text] of what is not equal within the tolerance."""
    found = []
    for name, a in expected.items():
        b = actual[name]
        error = float(numpy.abs(a.astype(float) - b).max())
        if not error <= TOLERANCE * max(float(numpy.abs(a).max()), 1e-3):  # a NaN is unequal, too
            found.append(f"{name}: off by {error:.3g} of {float(numpy.abs(a).max()):.3g}")
    return found


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def train():
    """A line with a number of steps, and where to save: answered with figures, as JSON."""
    torch.set_num_threads(1)
    koila, training = Koila(), Training()
    budgets = Budgets(koila, training, int(sys.argv[2])) if koila.library else None
    log, spill = os.environ.get("KOILA_LOG_FILE"), os.environ.get("KOILA_SPILL_DIR")
    for line in sys.stdin:
        steps, path = line.split()
        for _ in range(int(steps)):
            if budgets:
                budgets.before_step()
            training.step()
        if budgets:
            koila.limit(0)
            budgets.left = 0
        numpy.savez(path, **training.state())
        figures = {"resident": resident(), "files": len(os.listdir("/proc/self/fd"))}
        if budgets:
            report = koila.report()
            figures |= {"live": koila.live(), "rescues": report["rescues"], "refusals": len(report["refusals"]), "regions": report["regions_total"]["count"],
                        "outside": report["devices"]["cpu"]["outside_bytes"], "outside_written": report["devices"]["cpu"]["outside_written_bytes"],
                        "ladder": {k: v["count"] for k, v in report["ladder"].items()},
                        "report": len(json.dumps(report, indent=2)), "budgets": budgets.changes,
                        "spilled": sum(f.stat().st_size for f in Path(spill).iterdir()), "log": len(Path(log).read_text().splitlines()) if os.path.exists(log) else 0}
        print(json.dumps(figures), flush=True)


class Trainer:
    def __init__(self, seed, **settings):
        self.process = subprocess.Popen([sys.executable, __file__, "--worker", str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment(**settings))

    def train(self, steps, path):
        self.process.stdin.write(f"{steps} {path}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the process ended with {self.process.wait()}: see the error above")
        with numpy.load(path) as arrays:
            return json.loads(answer), dict(arrays)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def problems(figures, different):
    """What is wrong, as texts; `figures` of koila's process after a fifth of the steps each."""
    found = list(different)
    warm, end = figures[0], figures[-1]
    # Two per cent: Python and the C library keep pages of their own.
    for name, allowance in (("resident", max(warm["resident"] // 50, 4 * 2 ** 20)), ("files", 0), ("live", 0), ("spilled", 0), ("outside", 0)):
        if end[name] > warm[name] + allowance:
            found.append(f"{name} grew from {warm[name]:,} to {end[name]:,}")
    for name, most in (("log", MAX_LOG_LINES), ("report", MAX_REPORT)):
        if end[name] > most:
            found.append(f"{name}: {end[name]:,}, at most {most:,}")
    if end["regions"] < end["budgets"]:
        found.append(f"only {end['regions']} regions under {end['budgets']} budgets: the run is worth nothing")
    return found


def main():
    if sys.argv[1:2] == ["--worker"]:
        return train()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    figures, different, done = [], [], 0
    print("| steps | budgets | rescues | refusals | regions | resident KiB | plain's KiB | files | log lines | report KiB | written outside KiB | exact |\n" + "|---" * 12 + "|")
    with tempfile.TemporaryDirectory() as folder:
        spill = Path(folder) / "spill"
        spill.mkdir()
        plain = Trainer(args.seed)
        koila = Trainer(args.seed, KOILA_MODE="rescue", KOILA_LOG_FILE=str(Path(folder) / "log"), KOILA_SPILL_DIR=str(spill))
        for fifth in range(1, 6):
            steps = args.steps * fifth // 5 - done
            done += steps
            own, expected = plain.train(steps, f"{folder}/plain.npz")
            found, actual = koila.train(steps, f"{folder}/koila.npz")
            different = differences(expected, actual)
            figures.append(found)
            print(f"| {done} | {found['budgets']} | {found['rescues']} | {found['refusals']} | {found['regions']} | {found['resident'] // KIB} | {own['resident'] // KIB} | "
                  f"{found['files']} | {found['log']} | {found['report'] // KIB} | {found['outside_written'] // KIB} | {'no' if different else 'yes'} |", flush=True)
        plain.close()
        koila.close()
    print("\nladder:", ", ".join(f"{name} {count}" for name, count in figures[-1]["ladder"].items()))
    wrong = problems(figures, different)
    print("\n".join(wrong) if wrong else f"{done} steps: equal to {TOLERANCE}, and nothing grew")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
