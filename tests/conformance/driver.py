"""Runs the checks in child processes with koila preloaded, and names what crashes one."""

import collections
import dataclasses
import json
import os
import queue
import random
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from harness import LIBRARY, clean_environment  # noqa: E402

import calls  # noqa: E402

PATIENCE = 120  # seconds for one call


@dataclasses.dataclass
class Order:
    kind: str  # "operator", "module", or "kernel": an operator by its own name, see registry.py
    name: str
    dtype: str
    samples: list | None = None  # numbers; None: all


@dataclasses.dataclass
class Found:
    order: Order
    call: str
    variant: str
    outcome: str
    separable: bool
    micro_batch: int
    detail: str
    whole: tuple


def key(order):
    """What tells an order from the others of a run."""
    return order.kind, order.name, order.dtype


def read(path):
    """What an earlier run wrote (--raw): whole orders, each of them when it was done."""
    found = []
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                if line.endswith("\n"):
                    fields = json.loads(line)
                    found.append(Found(**{**fields, "order": Order(**fields["order"]), "whole": tuple(fields["whole"])}))
    return found


class Worker:
    def __init__(self, environment):
        self.environment = environment
        self.process = None

    def start(self):
        self.process = subprocess.Popen([sys.executable, "-u", str(HERE / "worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=self.environment, errors="replace")
        self.lines = queue.Queue()
        self.errors = collections.deque(maxlen=20)
        threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True).start()
        threading.Thread(target=lambda p: self.errors.extend(p.stderr), args=(self.process,), daemon=True).start()
        self._answer()

    def _read(self, stream, lines):
        for line in stream:
            if line.startswith("@"):
                lines.put(json.loads(line[1:]))
        lines.put(None)

    def _answer(self):
        """The next answer; None: the process is gone, or says nothing."""
        try:
            return self.lines.get(timeout=PATIENCE)
        except queue.Empty:
            self.process.kill()
            return None

    def check(self, order):
        found, start = [], 0
        while True:
            if self.process is None:
                self.start()
            self.process.stdin.write(json.dumps({**dataclasses.asdict(order), "from": start}) + "\n")
            self.process.stdin.flush()
            begun = None
            while (answer := self._answer()) is not None and "done" not in answer:
                if "begin" in answer:
                    begun = answer
                elif "failed" in answer:
                    found.append(Found(order, order.name, "", "skipped", False, 0, "its samples: " + answer["failed"], ()))
                else:
                    found += [Found(order, answer["call"], answer["variant"], whole=tuple(v.pop("whole")), **v) for v in answer["verdicts"]]
            if answer is not None:
                return found
            code = self.process.wait()
            self.process = None
            if begun is None:
                found.append(Found(order, order.name, "", "crashed", False, 0, f"before its first sample: exit status {code}", ()))
                return found
            found.append(Found(order, begun["begin"], "", "crashed", False, 0, f"exit status {code} {' '.join(self.errors)[-300:]}", ()))
            start = begun["number"] + 1

    def stop(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


def environment(**more):
    return clean_environment({"LD_PRELOAD": str(LIBRARY), "KOILA_MODE": "rescue", "KOILA_REPORT": "off", "OMP_NUM_THREADS": "1", **more})


def without_rule():
    """Operators with an autograd formula and no rule, see registry.py."""
    program = "import json, registry; print(json.dumps([len(registry.operators()), registry.without_rule()]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, env={**environment(), "PYTHONPATH": str(HERE)}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def kernels(names):
    return [Order("kernel", name, "float64") for name in names]


def orders(pattern=None, dtypes=None, at_most=None, seed=0):
    """What to check. `at_most`: so many samples of each operator, picked by the seed."""
    for kind, infos in (("operator", calls.operators()), ("module", calls.modules())):
        for name, info in infos.items():
            if pattern is not None and not pattern.fullmatch(name):
                continue
            for dtype in calls.dtypes(info, name):
                text = str(dtype).removeprefix("torch.")
                if dtypes and text not in dtypes:
                    continue
                yield Order(kind, name, text, None if at_most is None else picked(kind, name, dtype, info, at_most, seed))


def picked(kind, name, dtype, info, at_most, seed):
    """Numbers of some samples: the first, which is the simplest, and others by chance."""
    rng = random.Random(f"{seed} {kind} {name} {dtype}")
    return sorted({0} | {int(rng.expovariate(0.1)) for _ in range(at_most - 1)})


def run(all_orders, jobs=2, progress=None, **more):
    """`more`: variables of the processes under koila."""
    waiting = queue.Queue()
    for order in all_orders:
        waiting.put(order)
    found, lock = [], threading.Lock()
    total = waiting.qsize()

    def work():
        worker = Worker(environment(**more))
        while True:
            try:
                order = waiting.get_nowait()
            except queue.Empty:
                break
            result = worker.check(order)
            with lock:
                found.extend(result)
                if progress:
                    progress(total - waiting.qsize(), total, result)
        worker.stop()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def default_jobs():
    return max(1, len(os.sched_getaffinity(0)))
