"""Out-of-memory at every allocation of a run in turn: exact, or the plain error with the plain state.

    python tests/e2e/sweep.py                             everything, two at a time
    python tests/e2e/sweep.py --family cnn --optimizer sgd --every 10
    python tests/e2e/sweep.py --family mlp --first 12 --last 12
"""

import argparse
import collections
import concurrent.futures
import os
import sys
import threading
import time

import harness
from harness import Case, Server, assert_exact_or_untouched, koila_environment, plain, tracked

FAMILIES = ["cnn", "gpt"]
OPTIMIZERS = ["sgd", "adamw"]
# An allocation that fails although there is room succeeds when it is tried again; that would leave nothing to split.
LADDER = "1,2"


def cases(families=FAMILIES, optimizers=OPTIMIZERS, device="cpu"):
    """Two steps each: in the first, gradients and optimizer state come into being; in the second they are there. Where rows depend on one another,
    in double precision: single would be rounding above all."""
    coupled = harness.families("stages")
    return [Case(family, optimizer, steps=2, rows=5 if family in FAMILIES else 0, device=device, dtype="float64" if family in coupled else "float32") for family in families for optimizer in optimizers]


def allocations(case):
    return tracked(case).allocations[-1]


def fail_at(case, spec, rescue=None, track=None):
    """'exact' or 'refused' for an injection such as nth:17; an AssertionError for everything else."""
    rescue = rescue or (lambda: harness.run(case, "rescue", inject=spec, KOILA_LADDER=LADDER))
    track = track or (lambda: harness.run(case, "track", inject=spec))
    return assert_exact_or_untouched(plain(case), track, rescue(), case.tolerance)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", help="any of tests/e2e, `all` for each of them")
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS)
    parser.add_argument("--first", type=int, default=1, help="the first allocation to fail")
    parser.add_argument("--last", type=int)
    parser.add_argument("--every", type=int, default=1, help="take each n-th only")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu",
                        help="cuda: simulated, and without a cache, so that each tensor is an allocation")
    parser.add_argument("--ladder", default=LADDER, help="KOILA_LADDER; 0 among it: what fails once is tried again")
    parser.add_argument("--spec", default="nth:{}", help="how to fail; {} is the number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    if args.device == "cuda":
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        args.spec = "cuda:0:" + args.spec
    families = args.family or FAMILIES
    if families == ["all"]:
        families = list(harness.families("models", "stages", "styles", "coupled", "reads", "refused"))
        families.remove("catches_and_gives_up")  # it catches the error and goes on, which is neither
        if args.device == "cuda":
            families = [family for family in families if family not in harness.OF_THE_CPU]

    # Each thread has its own two servers.
    local = threading.local()
    servers = []

    def server(mode):
        if not hasattr(local, mode):
            setattr(local, mode, Server(koila_environment(mode, KOILA_LADDER=args.ladder)))
            servers.append(getattr(local, mode))
        return getattr(local, mode)

    def one(case, number):
        spec = args.spec.format(number)
        try:
            return number, fail_at(case, spec, lambda: server("rescue").run(case, None, spec, 60),
                                   lambda: server("track").run(case, None, spec, 60)), ""
        except AssertionError as error:
            return number, "WRONG", str(error)

    wrong = 0
    print("| model | optimizer | allocations | exact | refused as plain | wrong | seconds |\n|---|---|---|---|---|---|---|")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for case in cases(families, args.optimizer or OPTIMIZERS, args.device):
            began = time.monotonic()
            plain(case)
            numbers = range(args.first, (args.last or allocations(case)) + 1, args.every)
            outcomes = collections.Counter()
            texts = collections.OrderedDict()
            for number, outcome, text in pool.map(lambda n: one(case, n), numbers):
                outcomes[outcome] += 1
                if text:
                    texts.setdefault(text.split("\n---")[0], (number, text))
            print(f"| {case.family} | {case.optimizer} | {len(numbers)} | {outcomes['exact']} | {outcomes['refused']} | "
                  f"{outcomes['WRONG']} | {time.monotonic() - began:.0f} |", flush=True)
            for number, text in texts.values():
                print(f"\n{case.family} {case.optimizer}, {args.spec.format(number)}:\n{text}\n", file=sys.stderr, flush=True)
            wrong += outcomes["WRONG"]
    for each in servers:
        each.stop()
    harness.stop_servers()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
