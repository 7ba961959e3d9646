"""Runs other people's test suites plain and under koila, and compares the numbers of every backward pass and every optimizer step.

    scripts/suites                      all of them, as far as they have not been run yet
    scripts/suites einops vit-pytorch   some
    scripts/suites --list               what there is
    scripts/suites --minutes 5 NAME     no longer than that for each; what has no time is left for the next call
    scripts/suites --again NAME         what was found before is forgotten (so it is when the library is another one)
    scripts/suites --write              docs/suites.md

Each suite is a source package of the registry, in an environment of its own below .cache/suites. Every test runs in a child process: plain, plain again with
other rubbish in fresh memory (a test that differs from itself is left out), plain with its gradients stirred by some roundings (what it makes of rounding), under the bare preload, in micro-batches of 1
and 3 rows, and with allocations that fail. The bare preload may change no bit. The others may end in an out-of-memory error, or leave plain's numbers to rounding.
"""

import argparse
import datetime
import hashlib
import json
import random
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import compare
import environment
import suites_table
from catalogue import SUITES

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from harness import LIBRARY, koila_environment  # noqa: E402

RESULTS = environment.CACHE / "results"
# The ways in which a test is run, by process: koila's variables (None: no koila), and for each way its name and how allocations fail.
PROCESSES = (
    (None, {"plain": None, "again": None, "stirred": None}),
    ({}, {"preload": None}),
    ({"KOILA_MICROBATCH": "1"}, {"rows 1": None}),
    ({"KOILA_MICROBATCH": "3"}, {"rows 3": None}),
    ({"KOILA_LADDER": "1"}, {"one fault, ladder 1": "nth", "faults, ladder 1": "random"}),
    ({"KOILA_LADDER": "0,1"}, {"faults, ladder 0,1": "random"}),
    ({}, {"faults": "random"}),
)
MODES = tuple(mode for _, modes in PROCESSES for mode in modes)
COMPARED = MODES[3:]
# The share of a suite's time that the first may take: the others run what it has run.
PLAIN_SHARE = 0.25
STIR = 1e-6


def folder_of(suite):
    return RESULTS / suite.name


def file_of(suite, mode):
    return folder_of(suite) / (mode.replace(" ", "_").replace(",", "") + ".jsonl")


def read(suite, mode):
    path = file_of(suite, mode)
    if not path.exists():
        return {}
    with open(path) as file:
        return {record["test"]: record for record in map(json.loads, file)}


def faults_of(kind, records, mode):
    """For each test what fails, by what it allocated under the bare preload: about three faults, or one, in its steps."""
    faults = {}
    for name, record in records.items():
        draw = random.Random(zlib.crc32(f"{mode} {name}".encode()))
        first, last = record["first"] or 0, record["last"] or record["requests"]
        within = max(1, last - first)
        if kind == "nth":
            faults[name] = f"nth:{first + draw.randint(1, within)}"
        else:
            faults[name] = f"random:{min(0.3, 3 / within):.6f}:{draw.randint(1, 10**6)}"
    return faults


def run_process(suite, koila, modes, seconds, log):
    """Runs what the modes' files do not have yet."""
    variables = environment.variables(suite)
    folder = folder_of(suite)
    if koila is not None:
        variables |= koila_environment("rescue", **koila)
    variables |= {"SUITES_SECONDS": str(seconds), "SUITES_PATIENCE": str(suite.patience)}
    runs = []
    for mode, kind in modes.items():
        run = {"out": str(file_of(suite, mode)), "stir": STIR if mode == "stirred" else None, "fill": mode == "again"}
        if kind:
            run["faults"] = str(folder / f"faults {mode}")
            Path(run["faults"]).write_text(json.dumps(faults_of(kind, read(suite, "preload"), mode)))
        runs.append(run)
    variables["SUITES_RUNS"] = json.dumps(runs)
    if "plain" not in modes:
        plain = read(suite, "plain")
        wanted = comparable(suite, koila, modes, plain)
        if all(name in read(suite, mode) for mode in modes for name in wanted):
            return
        (folder / "tests").write_text("\n".join(wanted))
        (folder / "patience").write_text(json.dumps({name: 20 + 10 * plain[name]["seconds"] for name in wanted}))
        variables |= {"SUITES_TESTS": str(folder / "tests"), "SUITES_PATIENCE": str(folder / "patience")}
    tests = [str(HERE / test) if test.startswith("programs/") else str(environment.source(suite) / test) for test in suite.tests]
    command = [str(environment.interpreter(suite)), "-m", "pytest", "-p", "koila_suite_plugin", "-p", "no:cacheprovider", "-c", str(HERE / "pytest.ini"), "--rootdir", "/",
               "--capture=sys", "-q", "--continue-on-collection-errors", *suite.arguments, *tests]
    if suite.leave_out:
        command += ["-k", " and ".join(f"not {part}" for part in suite.leave_out)]
    log.write(f"== {', '.join(modes)}: {' '.join(command)}\n")
    log.flush()
    subprocess.run(command, cwd=environment.source(suite) or HERE, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                   timeout=seconds + 900)


def comparable(suite, koila, modes, plain):
    """The tests of the plain run that are of use here."""
    again = read(suite, "again")
    names = [name for name, record in plain.items()
             if name in again and not (record["outcome"] == "failed" and not record["records"]) and compare.same_bits(record, again[name]) is None]
    if not any(modes.values()):
        return names
    preload = read(suite, "preload")
    return [name for name in names if plain[name]["records"] and preload.get(name, {}).get("requests")]


def run(suite, minutes):
    started = time.time()
    ends = started + 60 * minutes
    with open(folder_of(suite) / "log", "a") as log:
        for koila, modes in PROCESSES:
            run_process(suite, koila, modes, 60 * minutes * PLAIN_SHARE if "plain" in modes else ends - time.time(), log)
            if not read(suite, "plain"):
                raise environment.Failed(f"no test ran: {folder_of(suite) / 'log'}")
            if time.time() > ends:
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--minutes", type=float, default=10, metavar="N", help="for each suite at most (default 10)")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", metavar="MODE", action="append", help=f"forget, and run again, this mode: {', '.join(MODES)}")
    parser.add_argument("--write", action="store_true", help="write docs/suites.md from what was found so far")
    args = parser.parse_args()
    unknown = set(args.names) - SUITES.keys()
    if unknown:
        parser.error(f"no suite of the name {', '.join(sorted(unknown))}; --list shows them")
    chosen = [SUITES[name] for name in args.names or SUITES]
    if args.list:
        for suite in chosen:
            print(f"{suite.name:28} {suite.version or 'torch':10} {suite.what}")
        return
    violations = 0
    if not args.write or args.names or args.again:
        library = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()
        for suite in chosen:
            stamp = folder_of(suite) / "library"
            if args.again:
                shutil.rmtree(folder_of(suite), ignore_errors=True)
            for mode in args.only or () if not stamp.exists() or stamp.read_text() == library else COMPARED:
                file_of(suite, mode).unlink(missing_ok=True)
            folder_of(suite).mkdir(parents=True, exist_ok=True)
            stamp.write_text(library)
            try:
                run(suite, args.minutes)
            except environment.Failed as error:
                print(f"{suite.name}: {error}", flush=True)
                (folder_of(suite) / "why_not").write_text(str(error))
                continue
            found = suites_table.Summary(suite, {mode: read(suite, mode) for mode in MODES}, COMPARED)
            print(found.text(), flush=True)
            violations += len(found.violations)
    if args.write:
        summaries = [suites_table.Summary(suite, {mode: read(suite, mode) for mode in MODES}, COMPARED) for suite in SUITES.values() if read(suite, "plain")]
        (environment.ROOT / "docs" / "suites.md").write_text(suites_table.markdown(summaries, COMPARED, datetime.date.today()))
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
