"""scripts/mutants: builds koila with one fault after the other, and tells which of them the fuzzer and the check at run time find. See docs/fuzzing.md."""

import argparse
import collections
import concurrent.futures
import dataclasses
import itertools
import json
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent / "fuzz")]

import fuzz_driver  # noqa: E402
import test_corpus  # noqa: E402
from mutants import MUTANTS, mutated  # noqa: E402
from program import Script  # noqa: E402

BUILD = ROOT / "build"
LIBRARIES = ("libkoila.so", "libkoila_torch.so")
fuzz_driver.PATIENCE = 180  # the machine may have more to do than this
KINDS = ("wrong", "error", "crash", "hang", "over", "changed")
TURN = 60  # programs that one process takes, and with them one environment
CHECKED = 100  # programs that the check is shown where the fuzzer has found none
CHECKED_AT_ONCE = 50  # in one process: it tells of one mismatch and no more
CHECKED_ENVIRONMENT = {"KOILA_LADDER": "0,1"}


# ---- a library with a fault ------------------------------------------------------------------------------------------------------


def commands(library):
    """How build/lib/LIBRARY is made, one command after the other."""
    done = subprocess.run(["ninja", "-C", str(BUILD), "-t", "commands", f"lib/{library}"], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if not line.startswith("ninja:")]


def built(mutant, folder):
    """Makes both libraries with the fault in `folder`, and leaves the sources and build/ as they are. What the fault does not concern is taken from build/."""
    text = mutated((ROOT / mutant.file).read_text(), mutant)
    source = folder / Path(mutant.file).name
    lib = folder / "lib"
    if source.exists() and source.read_text() == text and all((lib / name).exists() for name in LIBRARIES):
        return lib
    shutil.rmtree(folder, ignore_errors=True)
    lib.mkdir(parents=True)
    source.write_text(text)
    shutil.copy(BUILD / "lib" / "libkoila_torch.version", lib)
    anew = {}  # what of build/ has been made anew, and where
    for library in LIBRARIES:
        for command in commands(library):
            if command.endswith(f" -c ../{mutant.file}"):
                output = re.search(r" -o (\S+)", command).group(1)
                command = command.removesuffix(f"../{mutant.file}") + str(source)
                command = re.sub(r" -MF \S+", f" -MF {folder / 'needed'}", command)
            elif any(f" {old} " in command + " " for old in anew):
                output = re.search(r"(?: -o| csrDT?) (\S+)", command).group(1)
                command = command.replace(" csrDT ", " csrD ")  # a thin archive has paths that hold from its own folder
            else:
                continue
            if output in anew:  # in both libraries
                continue
            new = lib / library if output == f"lib/{library}" else folder / output.replace("/", "_")
            for old, path in [*anew.items(), (output, new)]:
                command = re.sub(rf"(?<=\s){re.escape(old)}(?=\s|$)", str(path), command)
            done = subprocess.run(command, shell=True, cwd=BUILD, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{mutant.name}: {command}\n{done.stdout}{done.stderr}")
            anew[output] = new
        if not (lib / library).exists():
            shutil.copy(BUILD / "lib" / library, lib)
    if not anew:
        raise SystemExit(f"{mutant.name}: neither library is made of {mutant.file}")
    for name in LIBRARIES:
        size, usual = (lib / name).stat().st_size, (BUILD / "lib" / name).stat().st_size
        if abs(size - usual) > usual // 50:
            raise SystemExit(f"{mutant.name}: {name} has {size} bytes, and {usual} without the fault")
    for path in anew.values():
        if path.parent != lib:
            path.unlink()
    return lib


# ---- programs, made once for all mutants -----------------------------------------------------------------------------------------


class Programs:
    """As fuzz_driver.Maker, but what was made for one mutant is there for the next."""

    def __init__(self, folder):
        self.folder, self.maker = folder, None
        folder.mkdir(parents=True, exist_ok=True)

    def make(self, seed):
        path = self.folder / f"{seed}.pickle"
        if not path.exists():
            self.maker = self.maker or fuzz_driver.Maker()
            blob = self.maker.make(seed)
            half = path.with_suffix(f".{threading.get_ident()}")
            half.write_bytes(pickle.dumps(blob))
            half.replace(path)
        return pickle.loads(path.read_bytes())

    def end(self):
        if self.maker:
            self.maker.end()
        self.maker = None


# ---- what finds it ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Result:
    name: str
    seconds: float = 0.0  # of the fuzzer
    programs: int = 0
    finding: str = ""  # what the fuzzer has found; "" nothing
    seed: int = -1
    check: str = ""  # what the check says of it; "" nothing
    also_without: int = 0  # findings that the library has without the fault as well
    where: str = ""  # what the check was shown

    @property
    def found(self):
        return bool(self.finding or self.check)


def counts(kind):
    return kind.split(":")[0] in KINDS


def bad(verdicts):
    return next((verdict for verdict in verdicts if verdict.bad and counts(verdict.kind)), None)


def run(library, environment, blobs, seeds):
    """What comes of the last of the programs, run one after the other in a process of their own: the kind, or ""."""
    worker = fuzz_driver.Worker(environment, library)
    try:
        for blob, seed in zip(blobs, seeds):
            verdict = bad(worker.ask("run", blob, seed))
        return verdict.kind if verdict else ""
    except fuzz_driver.Gone as gone:
        return str(gone)
    finally:
        worker.end()


class Search:
    """The fuzzer on one library, until it finds what the library without the fault does not show."""

    def __init__(self, library, programs, seed, minutes, environment):
        self.library, self.programs, self.seed, self.minutes, self.environment = library, programs, seed, minutes, environment
        self.found = None
        self.alone = True
        self.also_without = 0
        self.spoiled = set()  # processes, by their first seed, in which the library goes wrong without the fault as well: what follows says nothing

    def go(self):
        begin = time.monotonic()
        self.tally = fuzz_driver.Tally()
        environments = itertools.repeat(self.environment) if self.environment else fuzz_driver.configurations(random.Random(self.seed))
        self.lane = fuzz_driver.Lane(self.tally, itertools.count(self.seed), environments, begin + self.minutes * 60,
                                     self._look_at, counts, library=self.library, maker=lambda: self.programs, turn=TURN)
        self.lane._run()
        return time.monotonic() - begin

    def history(self):
        seeds = [self.found.seed] if self.alone else self.found.history
        return [self.programs.make(seed) for seed in seeds], seeds

    def _look_at(self, finding):
        if self.found or finding.history[0] in self.spoiled:
            return
        self.found = finding
        for self.alone in (True, False):
            if run(self.library, finding.environment, *self.history()):
                if not run(None, finding.environment, *self.history()):
                    self.lane.until = 0
                    return
                self.also_without += 1
                self.spoiled.add(finding.history[0])
                break
        self.found = None


def verified(folder):
    """Variables for a process that proves, and leaves word in the folder of what it has found wrong."""
    return {"KOILA_VERIFY": "first", "KOILA_RECORD": f"{folder}/%p"}


def told(folder):
    """The check that refused, and the operator; or ""."""
    for path in Path(folder).glob("*.mismatch.json"):
        mismatch = json.loads(path.read_text())["mismatch"]
        return ", ".join(filter(None, (mismatch["check"], mismatch["operator"].removeprefix("aten::"))))
    return ""


def checked(library, environment, blobs, seeds):
    """What the check says, and what came of the last program."""
    with tempfile.TemporaryDirectory() as folder:
        kind = run(library, environment | verified(folder), blobs, seeds)
        return told(folder), kind


def checked_on_fixed_programs(library, programs, seed):
    """What the check says of the corpus, and of the programs of the first seeds, some at a time."""
    found = {}
    made = [(number, programs.make(number)) for number in range(seed, seed + CHECKED)]
    seeds, blobs = zip(*[(number, blob) for number, blob in made if isinstance(blob, tuple)])
    for begin in range(0, len(seeds), CHECKED_AT_ONCE):
        found[f"from seed {seeds[begin]}"], _ = checked(library, CHECKED_ENVIRONMENT, blobs[begin:begin + CHECKED_AT_ONCE], seeds[begin:begin + CHECKED_AT_ONCE])
    plain = fuzz_driver.Worker()
    corpus = [plain.ask("again", Script(str(path))) for path in test_corpus.SCRIPTS]
    plain.end()
    with tempfile.TemporaryDirectory() as folder:
        worker = fuzz_driver.Worker(CHECKED_ENVIRONMENT | verified(folder), library)
        try:
            for blob in corpus:
                worker.ask("probe", blob, test_corpus.settings(), False)
        except fuzz_driver.Gone:
            pass
        worker.end()
        found["corpus"] = told(folder)
    return {where: what for where, what in found.items() if what}


class Bench:
    def __init__(self, folder, seed, minutes, environment):
        self.folder, self.seed, self.minutes, self.environment = folder, seed, minutes, environment
        self.lock = threading.Lock()

    def library(self, mutant):
        with self.lock:
            return built(mutant, self.folder / mutant.name) / "libkoila.so"

    def _without_fault(self, programs):
        with self.lock:
            path = self.folder / f"without-{self.seed}-{fuzz_version()}.json"
            if not path.exists():
                path.write_text(json.dumps(checked_on_fixed_programs(None, programs, self.seed)))
            return json.loads(path.read_text())

    def measure(self, mutant):
        library = self.library(mutant)
        programs = Programs(self.folder / f"programs-{fuzz_version()}")
        search = Search(library, programs, self.seed, self.minutes, self.environment)
        result = Result(mutant.name, search.go(), search.tally.programs, also_without=search.also_without)
        if search.found:
            finding = search.found
            result.finding, result.seed = f"{finding.kind}: {finding.detail}"[:300] if finding.kind.split(":")[0] != "crash" else finding.kind, finding.seed
            (self.folder / mutant.name / "finding.pickle").write_bytes(pickle.dumps(finding))
            result.check, kind = checked(library, finding.environment, *search.history())
            result.where = f"the program found ({finding.setting}, {json.dumps(finding.environment)}{'' if search.alone else ', after ' + str(len(finding.history) - 1) + ' others'}); {'refused' if result.check else kind or 'not seen'}"
        else:
            says = checked_on_fixed_programs(library, programs, self.seed)
            without = self._without_fault(programs) if says else {}
            result.check, result.where = next(((what, where) for where, what in says.items() if where not in without), ("", "the fixed programs"))
        programs.end()
        return result


def fuzz_version():
    """Another generator makes other programs of the same seeds."""
    import hashlib
    digest = hashlib.sha256()
    for path in sorted((HERE.parent / "fuzz").glob("*.py")):
        if path.name not in ("fuzz_driver.py", "test_corpus.py", "shrink.py"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


# ---- the table -------------------------------------------------------------------------------------------------------------------


def table(results):
    lines = ["| fault | the fuzzer: seconds, programs, what | the check |", "|---|---|---|"]
    for result in results:
        fuzzer = f"{result.seconds:.0f} s, {result.programs}: {result.finding.split(':')[0]} (seed {result.seed})" if result.finding else f"nothing in {result.seconds:.0f} s, {result.programs}"
        check = f"refused: {result.check}" if result.check else result.where.rsplit("; ", 1)[-1].replace("wrong", "still wrong") if result.finding else "nothing"
        lines.append(f"| {result.name} | {fuzzer} | {check} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="scripts/mutants")
    parser.add_argument("names", nargs="*", metavar="NAME", help="all unless given")
    parser.add_argument("--minutes", type=float, default=5, help="of the fuzzer for one fault")
    parser.add_argument("--seed", type=int, default=910000, help="the fuzzer's first seed")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time; each keeps one core busy")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for every process under koila, instead of random ones")
    parser.add_argument("--resume", action="store_true", help="leaves out what an earlier run has measured")
    parser.add_argument("--build-only", action="store_true", help="makes the libraries, and measures nothing")
    parser.add_argument("--keep", default=str(ROOT / ".cache" / "mutants"), help="where libraries, findings and results go")
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in options.names if name not in known]:
        raise SystemExit(f"no fault {', '.join(unknown)}: {', '.join(known)}")
    chosen = [known[name] for name in options.names] or MUTANTS
    for mutant in chosen:
        mutated((ROOT / mutant.file).read_text(), mutant)
    bench = Bench(Path(options.keep), options.seed, options.minutes, dict(text.split("=", 1) for text in options.set))
    bench.folder.mkdir(parents=True, exist_ok=True)
    if options.build_only:
        for mutant in chosen:
            begin = time.monotonic()
            print(bench.library(mutant), f"{time.monotonic() - begin:.0f} s", flush=True)
        return 0
    print(f"seeds from {options.seed}, {TURN} programs a process, {options.minutes:g} minutes a fault at most", flush=True)
    file = bench.folder / "results.jsonl"
    results = {}
    if file.exists():
        for line in file.read_text().splitlines():
            result = Result(**json.loads(line))
            results[result.name] = result
    if not options.resume:
        results = {name: result for name, result in results.items() if options.names and name not in options.names}
        file.write_text("".join(json.dumps(dataclasses.asdict(result)) + "\n" for result in results.values()))
    left = [mutant for mutant in chosen if mutant.name not in results]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool, file.open("a") as out:
        for done in concurrent.futures.as_completed([pool.submit(bench.measure, mutant) for mutant in left]):
            result = done.result()
            results[result.name] = result
            out.write(json.dumps(dataclasses.asdict(result)) + "\n")
            out.flush()
            print(table([result]).splitlines()[-1], flush=True)
    shown = [results[mutant.name] for mutant in chosen if mutant.name in results]
    ways = collections.Counter("both" if r.finding and r.check else "fuzzer" if r.finding else "check" if r.check else "neither" for r in shown)
    print("\n" + table(shown))
    print(f"\nby both {ways['both']}, by the fuzzer alone {ways['fuzzer']}, by the check alone {ways['check']}")
    print(f"{sum(r.found for r in shown)} of {len(shown)} found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
