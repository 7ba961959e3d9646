"""Budgets from next to nothing up to plain's peak, for each family that splits: a budget that is refused although a smaller one trains is a hole.

    python tests/e2e/holes.py                                every family, SGD and AdamW, 24 budgets
    python tests/e2e/holes.py --family gpt --optimizer adamw --budgets 48
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import os
import time

from harness import Case, differences, families, in_another_order, plain, run, stop_servers, tracked

OPTIMIZERS = ["sgd", "adamw"]
LADDER = "0,1"  # what a CUDA device has: no memory from outside


@dataclasses.dataclass
class Row:
    """One family with one optimizer: what each budget led to, the smallest first."""

    case: Case
    peak: int
    fixed: int
    outcomes: list  # (bytes, "exact" | "refused" | "wrong" | "over" | another outcome, what was said)

    @property
    def floor(self):
        """The smallest budget that trains, or None."""
        return min((budget for budget, outcome, _ in self.outcomes if outcome == "exact"), default=None)

    @property
    def holes(self):
        return [(budget, why) for budget, outcome, why in self.outcomes if outcome == "refused" and self.floor is not None and budget > self.floor]

    @property
    def faults(self):
        return [(budget, outcome, why) for budget, outcome, why in self.outcomes if outcome not in ("exact", "refused")]

    def picture(self):
        """A letter for each budget: `#` exact, `.` refused, else the fault's first letter."""
        return "".join({"exact": "#", "refused": "."}.get(outcome, outcome[0]) for _, outcome, _ in self.outcomes)


def budgets_of(case, count):
    """From what the program holds in any case up to just below what plain takes."""
    whole = tracked(case)
    least = max(whole.fixed, whole.loading)
    return [least + (whole.stepping - least) * (k + 1) // (count + 1) for k in range(count)]


def beyond_rounding(case, expected, found):
    """Differences; what a library returns in single precision from a model in double is held to that."""
    names = {name for name, array in expected.items() if case.dtype == "float64" and array is not None and array.dtype.name == "float32"}
    single = [{name: array for name, array in arrays.items() if name in names} for arrays in (expected, found)]
    rest = [{name: array for name, array in arrays.items() if name not in names} for arrays in (expected, found)]
    return differences(*rest, case.tolerance) + differences(*single, 1e-6)


def judge(case, budget, **environment):
    result = run(case, "rescue", budget=budget, timeout=120, KOILA_LADDER=LADDER, **environment)
    if result.outcome == "oom":
        return "refused", "; ".join(dict.fromkeys(result.reasons)) or result.message.strip().splitlines()[0]
    if result.outcome != "ok":
        return result.outcome, result.describe()
    found = beyond_rounding(case, plain(case).arrays, result.arrays)
    noise = in_another_order(case)
    if found and noise:
        own = {name: excess for excess, name, _ in beyond_rounding(case, plain(case).arrays, noise().arrays)}
        found = [difference for difference in found if difference[0] > 2 * own.get(difference[1], 0)]
    if found:
        return "wrong", f"{found[0][1]}: {found[0][2]}"
    return ("over", f"{result.peak:,} B") if result.peak > budget else ("exact", "")


def walk(case, count, **environment):
    whole = tracked(case)
    outcomes = [(budget, *judge(case, budget, **environment)) for budget in budgets_of(case, count)]
    return Row(case, whole.stepping, whole.fixed, outcomes)


def cases(names, optimizers, steps=3):
    return [Case(name, optimizer, steps=steps, rows=families()[name].budget_rows, dtype=getattr(families()[name], "dtype", "float64"), drops=True) for name in names for optimizer in optimizers]


def main():
    parser = argparse.ArgumentParser(prog="scripts/holes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", help="any of tests/e2e; all that split unless set")
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS)
    parser.add_argument("--budgets", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    names = args.family or [name for name, task in families().items() if task.splits]
    began = time.monotonic()
    reasons, holes, faults, runs = collections.Counter(), 0, 0, 0
    print("| family | optimizer | floor, share of plain's peak | budgets, smallest first: `#` exact, `.` refused | holes |\n|---|---|---|---|---|", flush=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        pending = [pool.submit(walk, case, args.budgets) for case in cases(names, args.optimizer or OPTIMIZERS)]
        for future in pending:
            row = future.result()
            floor = f"{row.floor / row.peak:.2f}" if row.floor else "none"
            print(f"| {row.case.family} | {row.case.optimizer} | {floor} | `{row.picture()}` | {len(row.holes)} |", flush=True)
            for budget, outcome, why in row.faults:
                print(f"  {outcome} at {budget:,} B: {why}", flush=True)
            reasons.update(why for _, why in row.holes)
            holes, faults, runs = holes + len(row.holes), faults + len(row.faults), runs + len(row.outcomes)
    stop_servers()
    print(f"\n{runs} budgets, {holes} holes, {faults} faults, KOILA_LADDER={LADDER}, {time.monotonic() - began:.0f} s")
    for why, count in reasons.most_common():
        print(f"- {count} x {why}")
    return 1 if holes or faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
