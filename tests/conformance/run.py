"""Checks koila's placement rules against PyTorch's databases of operators and modules, and writes what came out.

    scripts/conformance --write docs/conformance.md   all of it, some ten minutes on two cores
    scripts/conformance --only 'linalg.*'             prints what it finds for some
    scripts/conformance --sample 3 --seed 7           three samples of each operator
    scripts/conformance --registry docs/conformance.md    of the dispatcher's registry: operators without a rule, and that they run whole without harm
    scripts/conformance --raw FILE --resume           every sample of each; what FILE has of an earlier run is not run again
"""

import argparse
import datetime
import json
import re
import sys
import time
import warnings

import torch

import driver
import registry
import table


def check_registry(path, jobs):
    """Whether all is well. A release of torch that has new operators needs new samples: they are looked for first."""
    formulas, names = driver.without_rule()
    missing = [name for name in names if name not in registry.sources() and not registry.out_of_reach(name)]
    if missing:
        warnings.simplefilter("ignore")
        registry.keep(registry.find(missing))
    called = [name for name in names if name in registry.sources()]
    found = driver.run(driver.kernels(called), jobs, KOILA_LADDER="1")
    bad = [f for f in found if f.outcome in ("wrong", "error", "crashed", "refused")]
    for f in bad:
        print(f"{f.outcome}: {f.call}: {f.detail}")
    left = [name for name in missing if name not in registry.sources()]
    print(f"{formulas} operators with a formula, {len(names)} without a rule, {len(called)} of these shown to run whole; neither: {' '.join(left) or 'none'}")
    table.write_registry(path, formulas, names, called, found)
    return 1 if bad or left else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="REGEX", type=re.compile, help="names as in the databases, such as nn.functional.linear or nn.Linear")
    parser.add_argument("--dtype", action="append", metavar="NAME", help="float64, float32, int64, bool; may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="so many samples of each at most")
    parser.add_argument("--seed", default="0", help="which samples")
    parser.add_argument("--jobs", type=int, default=driver.default_jobs())
    parser.add_argument("--write", metavar="FILE", help="the table as Markdown")
    parser.add_argument("--raw", metavar="FILE", help="every verdict as JSON lines, written as they come")
    parser.add_argument("--resume", action="store_true", help="go on from what --raw has")
    parser.add_argument("--registry", metavar="FILE", help="checks the operators that have an autograd formula and no rule, writes their part of the page, and runs nothing else")
    args = parser.parse_args()
    if args.registry:
        sys.exit(check_registry(args.registry, args.jobs))

    started = time.monotonic()
    if args.resume and not args.raw:
        parser.error("--resume goes on from the file of --raw")
    before = driver.read(args.raw) if args.resume else []
    raw = open(args.raw, "a" if args.resume else "w") if args.raw else None

    def progress(done, total, found):
        if raw is not None:
            raw.writelines(json.dumps(driver.dataclasses.asdict(f)) + "\n" for f in found)
            raw.flush()
        for f in found:
            if f.outcome in ("wrong", "error", "crashed", "refused"):
                print(f"\r{f.outcome}: {f.call}: {f.detail}", flush=True)
        if sys.stdout.isatty():
            print(f"\r{done}/{total}", end="", flush=True)

    done = {driver.key(f.order) for f in before}
    orders = [order for order in driver.orders(args.only, args.dtype, args.sample, args.seed) if driver.key(order) not in done]
    found = before + driver.run(orders, args.jobs, progress)
    summary = table.Summary(found)
    print(summary.text(details=args.only is not None))
    print(f"{time.monotonic() - started:.0f} s")
    if args.write:
        kept = table.part_of_registry(args.write)
        with open(args.write, "w") as file:
            how = f"torch {torch.__version__.split('+')[0]} on the CPU, on {datetime.date.today()}, in {(time.monotonic() - started) / 60:.0f} minutes on {args.jobs} cores"
            if args.sample:
                how += f"; {args.sample} samples at most of each operator (seed {args.seed})"
            file.write(summary.markdown(how) + kept)
    sys.exit(1 if summary.violations else 0)


if __name__ == "__main__":
    main()
