"""Out-of-memory at every allocation of C++ programs in turn: exact, or the plain error with the plain state. tests/e2e/sweep.py for LibTorch.

    python tests/libtorch/cpp_sweep.py                          the trainers, with both optimizers, two at a time
    python tests/libtorch/cpp_sweep.py --program lstm --optimizer sgd --every 10
"""

import argparse
import collections
import concurrent.futures
import os
import sys
import threading
import time

from cpp_programs import COUPLED, TRAINERS, Case, Server

from harness import assert_exact_or_untouched, koila_environment, plain, run, stop_servers, tracked

OPTIMIZERS = ["sgd", "adamw"]
# An allocation that fails although there is room succeeds when it is tried again; that would leave nothing to split.
LADDER = "1,2"


def cases(programs=TRAINERS, optimizers=OPTIMIZERS):
    """Two steps each: in the first, gradients and optimizer state come into being; in the second they are there."""
    return [Case(program, optimizer, steps=2, rows=5, dtype="float32" if program in TRAINERS else "float64") for program in programs for optimizer in optimizers]


def allocations(case):
    return tracked(case).allocations[-1]


def fail_at(case, spec, rescue=None, track=None):
    """'exact' or 'refused' for an injection such as nth:17; an AssertionError for everything else."""
    rescue = rescue or (lambda: run(case, "rescue", inject=spec, KOILA_LADDER=LADDER))
    return assert_exact_or_untouched(plain(case), track or (lambda: run(case, "track", inject=spec)), rescue(), case.tolerance)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", help="any of `training_job --list`")
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS)
    parser.add_argument("--first", type=int, default=1, help="the first allocation to fail")
    parser.add_argument("--last", type=int)
    parser.add_argument("--every", type=int, default=1, help="take each n-th only")
    parser.add_argument("--ladder", default=LADDER, help="KOILA_LADDER; 0 among it: what fails once is tried again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()

    # Each thread has its own two servers.
    local = threading.local()
    servers = []

    def server(mode):
        if not hasattr(local, mode):
            setattr(local, mode, Server(koila_environment(mode, KOILA_LADDER=args.ladder)))
            servers.append(getattr(local, mode))
        return getattr(local, mode)

    def one(case, number):
        spec = f"nth:{number}"
        try:
            return number, fail_at(case, spec, lambda: server("rescue").run(case, None, spec, 60), lambda: server("track").run(case, None, spec, 60)), ""
        except AssertionError as error:
            return number, "WRONG", str(error)

    wrong = 0
    print("| program | optimizer | allocations | exact | refused as plain | wrong | seconds |\n|---|---|---|---|---|---|---|")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for case in cases(args.program or TRAINERS + COUPLED, args.optimizer or OPTIMIZERS):
            began = time.monotonic()
            plain(case)
            numbers = range(args.first, (args.last or allocations(case)) + 1, args.every)
            outcomes = collections.Counter()
            texts = collections.OrderedDict()
            for number, outcome, text in pool.map(lambda n: one(case, n), numbers):
                outcomes[outcome] += 1
                if text:
                    texts.setdefault(text.split("\n---")[0], (number, text))
            print(f"| {case.family} | {case.optimizer} | {len(numbers)} | {outcomes['exact']} | {outcomes['refused']} | {outcomes['WRONG']} | {time.monotonic() - began:.0f} |", flush=True)
            for number, text in texts.values():
                print(f"\n{case.family} {case.optimizer}, nth:{number}:\n{text}\n", file=sys.stderr, flush=True)
            wrong += outcomes["WRONG"]
    for each in servers:
        each.stop()
    stop_servers()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
