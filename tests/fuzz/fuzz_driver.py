"""scripts/fuzz: generated training programs, plain against koila. See docs/fuzzing.md."""

import argparse
import collections
import dataclasses
import itertools
import json
import os
import pickle
import random
import resource
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from verdict import Setting  # noqa: E402

LIBRARY = Path(os.environ.get("KOILA_LIBRARY", ROOT / "build" / "lib" / "libkoila.so"))
DEVICE = "cpu"  # of all processes; "cuda" is the simulated one
TABLE = False  # whether the operators that programs call are counted
PATIENCE = int(os.environ.get("KOILA_FUZZ_PATIENCE", "120"))  # seconds for one program in all its settings, or for a process to begin
TURN = 400  # programs that one process takes

# The other allocator of PyTorch's takes segments of 2 MiB, which are more than a program: a budget cut nothing, and no allocation failed. This one asks the device for each tensor.
EACH_TENSOR = {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}

LADDERS = ("", "", "0", "1", "0,1", "0,1", "2")


def configurations(choices):
    """Environments, one a process."""
    while True:
        environment = {"KOILA_LADDER": choices.choice(LADDERS)}
        way = choices.randrange(8)
        if way == 0:
            environment["KOILA_MICROBATCH"] = str(choices.choice((1, 1, 2, 3, 5)))
        elif way == 1:
            environment["KOILA_MODE"] = "lazy"
        elif way == 2:
            environment["KOILA_POLICY"] = choices.choice(("pow2", "fastest"))
        elif way == 3:
            environment = {"KOILA_FUZZ_FREE": "1"}
        elif way == 4:
            environment["KOILA_FUZZ_FRESH"] = "1"
        yield {name: value for name, value in environment.items() if value}


class Gone(Exception):
    """The process ended, or took too long."""


class Worker:
    """A process: a plain one, or one under koila where there is an environment for it."""

    def __init__(self, environment=None, library=None, script="fuzz_worker.py", arguments=(), more=None):
        self.log = tempfile.TemporaryFile()
        base = {name: value for name, value in os.environ.items() if not name.startswith("KOILA_") and name != "LD_PRELOAD"}
        base |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "KOILA_FUZZ_DEVICE": DEVICE, **({"KOILA_FUZZ_TABLE": "1"} if TABLE else {}), **(more or {})}
        if DEVICE == "cuda":
            base |= EACH_TENSOR
        if environment is not None:
            base |= {"LD_PRELOAD": str(library or LIBRARY), "KOILA_REPORT": "off", "KOILA_RECORD": "off", "KOILA_LOG": "error", **environment}
        self.process = subprocess.Popen([sys.executable, str(HERE / script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=base)

    def ask(self, *request):
        self.send(*request)
        return self.answer()

    def send(self, *request):
        data = pickle.dumps(request)
        try:
            self.process.stdin.write(struct.pack("<q", len(data)) + data)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says so

    def answer(self):
        head = self._read(8, time.monotonic() + PATIENCE)
        return pickle.loads(self._read(struct.unpack("<q", head)[0], time.monotonic() + PATIENCE))

    def _read(self, count, until):
        data = b""
        fd = self.process.stdout.fileno()
        while len(data) < count:
            if not select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
                self.process.kill()
                self.process.wait()
                raise Gone("hang")
            part = os.read(fd, count - len(data))
            if not part:
                status = self.process.wait()
                raise Gone(f"crash: signal {-status}" if status < 0 else f"crash: exit status {status}")
            data += part
        return data

    def last_words(self):
        self.log.seek(max(0, self.log.seek(0, 2) - 1500))
        return self.log.read().decode(errors="replace").strip()

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def leaks_by_itself(blob):
    """Whether plain PyTorch keeps memory of the program as well: what has been saved of a tensor that gets a graph by a write in place holds itself."""
    plain = Worker({"KOILA_MODE": "track"})
    try:
        return any(verdict.kind == "leak" for verdict in plain.ask("probe", blob, [Setting()], False))
    except Gone:
        return False
    finally:
        plain.end()


@dataclasses.dataclass
class Finding:
    seed: int
    environment: dict
    kind: str
    detail: str
    setting: object
    blob: tuple
    before: list  # settings of the same program before it
    history: list  # seeds that the process had run, this one last


class Tally:
    """What all lanes have done."""

    def __init__(self):
        self.lock = threading.Lock()
        self.verdicts = collections.Counter()
        self.operators = collections.Counter()
        self.pairs = collections.Counter()
        self.reached = collections.Counter()  # in how many programs an operator is called
        self.useless = collections.Counter()
        self.refusals = collections.Counter()
        self.programs = 0
        self.runs = 0
        self.findings = []

    def add(self, program, verdicts):
        with self.lock:
            self.programs += 1
            self.runs += len(verdicts)
            for verdict in verdicts:
                self.verdicts[verdict.kind] += 1
            self.reached.update(program.reached)
            maker = {}
            for statement in program.setup + program.step:
                self.operators.update(statement.operators)
                for operator in statement.operators:
                    self.pairs.update((maker[name], operator) for name in statement.uses if name in maker)
                for name in statement.defines:
                    if statement.operators:
                        maker[name] = statement.operators[-1]


class Maker:
    """Makes programs, in a plain process."""

    def __init__(self):
        self.worker = Worker()

    def make(self, seed):
        try:
            return self.worker.ask("make", seed)
        except Gone as gone:  # plain PyTorch can crash as well
            self.worker.end()
            self.worker = Worker()
            return f"plain crash: {gone}"

    def end(self):
        self.worker.end()


class Lane(threading.Thread):
    """One plain process and one under koila, side by side."""

    def __init__(self, tally, seeds, configurations, until, found, counts, *, library=None, maker=Maker, turn=TURN):
        super().__init__(daemon=True)
        self.tally, self.seeds, self.configurations, self.until, self.found, self.counts = tally, seeds, configurations, until, found, counts
        self.library, self.maker, self.turn = library, maker, turn
        self.problem = None

    def run(self):
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001
            self.problem = error
            raise

    def _run(self):
        plain = self.maker()
        try:
            while time.monotonic() < self.until:
                environment = next(self.configurations)
                under_koila = Worker(environment, self.library)
                history = []
                made = self._make(plain)
                while made and len(history) < self.turn and time.monotonic() < self.until:
                    seed, blob = made
                    under_koila.send("run", blob, seed)
                    made = self._make(plain)  # while koila's process works
                    history.append(seed)
                    try:
                        verdicts = under_koila.answer()
                    except Gone as gone:
                        self._report(Finding(seed, environment, str(gone), under_koila.last_words(), None, blob, [], history))
                        break
                    self.tally.add(pickle.loads(blob[0]), verdicts)
                    for verdict in verdicts:
                        if verdict.bad and self.counts(verdict.kind) and not (verdict.kind == "leak" and leaks_by_itself(blob)):
                            self._report(Finding(seed, environment, verdict.kind, verdict.detail, verdict.setting, blob, [v.setting for v in verdicts[:verdicts.index(verdict)]], list(history)))
                            break
                under_koila.end()
                if not made:
                    break
        finally:
            plain.end()

    def _make(self, plain):
        for seed in self.seeds:
            blob = plain.make(seed)
            if isinstance(blob, tuple):
                return seed, blob
            with self.tally.lock:
                self.tally.useless[blob.split(":")[0]] += 1
        return None

    def _report(self, finding):
        with self.tally.lock:
            self.tally.findings.append(finding)
        self.found(finding)


def say(text):
    print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="scripts/fuzz")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--programs", type=int, help="so many programs, whatever the time")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; the time of day unless set")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="pairs of processes; each keeps one to two cores busy")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1, help="2: programs for two ranks, koila on one of them or on both; one program at a time")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for every process under koila, instead of random ones")
    parser.add_argument("--keep", default=str(ROOT / ".cache" / "fuzz"), help="where what is found goes")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--only", nargs="+", help="kinds of findings that count: wrong error crash hang over changed leak alarm")
    parser.add_argument("--most", type=int, default=20, help="ends after so many findings")
    parser.add_argument("--shrink", nargs="+", metavar="FILE", help="makes the findings of an earlier run (.pickle files in --keep) small, and runs nothing else")
    parser.add_argument("--table", help="writes the counts by operator and by pair of neighbours, as JSON")
    options = parser.parse_args()
    global DEVICE, TABLE
    DEVICE, TABLE = options.device, bool(options.table)
    if options.shrink:
        import shrink
        shrink.keep([pickle.loads(Path(name).read_bytes()) for name in options.shrink], Path(options.keep), shrinking=True, say=say)
        return 0
    first = int(time.time()) % 10**8 * 1000 if options.seed is None else options.seed
    seeds = itertools.count(first) if not options.programs else iter(range(first, first + options.programs))
    lock = threading.Lock()

    class Shared:
        def __init__(self, values):
            self.values = iter(values)

        def __iter__(self):
            return self

        def __next__(self):
            with lock:
                return next(self.values)

    fixed = dict(text.split("=", 1) for text in options.set)
    environments = itertools.repeat(fixed) if fixed else configurations(random.Random(first))
    until = time.monotonic() + (10**9 if options.programs else options.minutes * 60)
    tally = Tally()
    say(f"seeds from {first}")
    begin = time.monotonic()

    def counts(kind):
        return not options.only or kind.split(":")[0] in options.only

    def found(finding):
        say(f"FOUND {finding.kind}: seed {finding.seed}, {finding.setting}, {json.dumps(finding.environment)}: {finding.detail[-400:]}")

    if options.ranks == 2:
        import ranks_driver
        verdicts, operators, findings, programs = ranks_driver.fuzz(seeds, environments, until, counts, Path(options.keep), say)
        say(f"{programs} programs for two ranks ({', '.join(f'{n} {kind}' for kind, n in verdicts.most_common())}) in {time.monotonic() - begin:.0f} s")
        say(f"in how many programs: {dict(operators.most_common())}")
        say(f"{len(findings)} found")
        return 1 if findings else 0

    shared_seeds, shared_environments = Shared(seeds), Shared(environments)
    lanes = [Lane(tally, shared_seeds, shared_environments, until, found, counts) for _ in range(options.jobs)]
    for lane in lanes:
        lane.start()
    told = begin
    while any(lane.is_alive() for lane in lanes):
        time.sleep(0.2)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            say(f"{tally.programs} programs, {tally.runs} runs, {len(tally.findings)} found, {tally.programs / (told - begin):.1f} programs a second")
        if len(tally.findings) >= options.most:
            for lane in lanes:
                lane.until = 0
    seconds = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of all processes that have ended: what a program costs on a machine that others use as well
    if tally.findings:
        import shrink
        shrink.keep(tally.findings, Path(options.keep), shrinking=not options.no_shrink, say=say)
    if options.table:
        import reached
        table = reached.table(tally.operators, tally.pairs, tally.reached)
        Path(options.table).write_text(json.dumps(table, indent=1))
        say(f"{len(tally.reached)} operators called; of {table['with a rule']} with a rule these were never reached ({len(table['never reached'])}): {' '.join(name[6:] for name in table['never reached'])}")
    say(f"{(used.ru_utime + used.ru_stime) / max(1, tally.programs):.3f} s of a processor for each program, with what its processes take to begin")
    say(f"{tally.programs} programs, {tally.runs} runs ({', '.join(f'{n} {kind}' for kind, n in tally.verdicts.most_common())}) in {seconds:.0f} s; {tally.runs / seconds:.1f} runs and {tally.programs / seconds:.1f} programs a second")
    say(f"{len(tally.operators)} operators and styles, {len(tally.pairs)} pairs of neighbours; seeds of no use: {dict(tally.useless.most_common())}")
    say(f"{len(tally.findings)} found")
    broken = [lane.problem for lane in lanes if lane.problem]
    return 2 if broken else 1 if tally.findings else 0


if __name__ == "__main__":
    import fuzz_driver  # as itself, so that what is pickled is found again

    sys.exit(fuzz_driver.main())
