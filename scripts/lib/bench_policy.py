"""The micro-batch that koila chooses by itself under a budget: how soon, and how good. Markdown to stdout.

Best: the fastest of the fixed sizes (KOILA_MICROBATCH) that need no more than the budget, found by trying them. Halving and x0.9 are computed, on the
same curves of memory and time: the sizes that they try until one fits, each failed try with the seconds that plain PyTorch takes until it runs out.
"""

import argparse
import re
import statistics
import tempfile
from pathlib import Path

from bench import Pair, Worker, machine

FAMILIES = {"mlp": 4096, "cnn": 1024, "gpt": 64, "lstm": 256}  # rows
SHARES = (0.3, 0.6)
SETTLED = 30  # steps, within which the size has to come to rest
MIB = 2 ** 20
# Both the first size, in the line of a rescue, and every later one.
SIZE = re.compile(r"micro-batches of (\d+) of (\d+) rows")
# Each a name, and the next size after one that failed.
HALVING = ("halving (toma, Composer)", lambda rows: rows // 2)
NINE_TENTHS = ("x 0.9 (accelerate)", lambda rows: int(rows * 0.9))
policy = "fastest"


def sizes_of(batch, coarse):
    """ceil(batch / k) for k from 1 to 64; coarse: twelve of them."""
    counts = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if coarse else range(1, 65)
    return sorted({-(-batch // k) for k in counts}, reverse=True)


def rescued(log):
    return Worker(KOILA_MODE="rescue", KOILA_POLICY=policy, KOILA_LOG="debug", KOILA_LOG_FILE=str(log))


class Curve:
    """Peak bytes and seconds of a step at each fixed micro-batch. All sizes in turn, twice, and the fastest of all steps: a median would be that of
    whatever else the machine does while one size has its turn."""

    def __init__(self, workload, sizes, repetitions):
        self.peak, self.seconds = {}, {}
        for size in [*sizes, *reversed(sizes)]:
            worker = Worker(KOILA_MODE="rescue", KOILA_MICROBATCH=str(size))
            found = [worker.run(workload) for _ in range(repetitions)]
            worker.close()
            self.seconds[size] = min(self.seconds.get(size, float("inf")), *(f[0] for f in found))
            self.peak[size] = max(self.peak.get(size, 0), *(f[1] for f in found))

    def fitting(self, budget):
        return [size for size, peak in self.peak.items() if peak <= budget]

    def best(self, budget):
        return min(self.fitting(budget), key=self.seconds.get)

    def at(self, values, rows):
        """Between two sizes that were measured, on the line through them."""
        if rows in values:
            return values[rows]
        above = min((m for m in values if m > rows), default=max(values))
        below = max((m for m in values if m < rows), default=min(values))
        if above == below:
            return values[above]
        return values[below] + (values[above] - values[below]) * (rows - below) / (above - below)


class Learning:
    """A process that trains whole, and then has a budget: what the first steps after that took, and what they came to."""

    def __init__(self, workload, budget, steps=SETTLED):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            worker = rescued(log)
            worker.run(workload)
            worker.limit(budget)
            self.seconds, self.changes, seen = [], [], 0
            for step in range(1, steps + 1):
                self.seconds.append(worker.run(workload)[0])
                text = log.read_text()
                self.changes += [(step, int(found[1])) for found in SIZE.finditer(text, seen)]
                seen = len(text)
            report = worker.report()
            worker.close()
        events = [event for event in report["oom_events"] if event["outcome"] == "rescued"]
        self.rescues = sum(event["count"] for event in events)
        self.conversion = events[0]["seconds"] if events else 0.0
        self.tried = [size for _, size in self.changes]
        self.until = self.changes[-1][0] if self.changes else 1
        self.size = report["micro_batch"]

    @property
    def seconds_until(self):
        return sum(self.seconds[:self.until - 1])

    @property
    def steady(self):
        return statistics.median(self.seconds[-10:])


def tries(curve, batch, budget, workload, following, failing):
    """(sizes tried, seconds of the failed ones, size that fits)"""
    rows, tried, seconds = batch, [], 0.0
    while True:
        tried.append(rows)
        if curve.at(curve.peak, rows) <= budget:
            return tried, seconds, rows
        failing.limit(0)
        failing.run(f"failing:{workload}:{rows}")
        failing.limit(budget)
        seconds += statistics.median(failing.run(f"failing:{workload}:{rows}")[0] for _ in range(3))
        rows = following(rows)


def main():
    global policy
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repetitions", type=int, default=4, help="steps at each fixed size, each time")
    parser.add_argument("--learnings", type=int, default=3, help="processes that learn the size anew")
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--policy", choices=("fastest", "model", "pow2"), default=policy, help="KOILA_POLICY; fastest by default, as the tables in docs/benchmarks.md")
    parser.add_argument("--all-sizes", action="store_true", help="every ceil(rows / k), k to 64; else twelve of them")
    args = parser.parse_args()
    policy = args.policy

    measured, simulated, first = [], [], []
    for name, batch in FAMILIES.items():
        if args.family and name not in args.family:
            continue
        workload = f"step:{name}:{batch}"
        tracked = Worker(KOILA_MODE="track")
        _, peak, fixed = tracked.run(workload, 3)
        curve = Curve(workload, sizes_of(batch, not args.all_sizes), args.repetitions)
        for share in SHARES:
            budget = fixed + int(share * (peak - fixed))
            label = f"| {name} | {batch} | {share:.0%} | {budget / MIB:.1f} "
            learnt = [Learning(workload, budget) for _ in range(args.learnings)]
            until = sorted(learning.until for learning in learnt)
            longest = max(learnt, key=lambda learning: learning.until)

            # The steady state that a process of its own comes to, beside the best.
            best = curve.best(budget)
            with tempfile.TemporaryDirectory() as folder:
                koila = rescued(Path(folder) / "log")
                fixed_size = Worker(KOILA_MODE="rescue", KOILA_MICROBATCH=str(best))
                for worker, steps in ((koila, SETTLED), (fixed_size, 3)):
                    worker.run(workload)
                    worker.limit(budget)
                    worker.run(workload, steps)
                pair = Pair(lambda: fixed_size.run(workload)[0], lambda: koila.run(workload)[0], args.rounds)
                report, forced = koila.report(), fixed_size.report()
                koila.close()
                fixed_size.close()
            assert not forced["refusals"] and forced["micro_batch"] == best, f"{name}: {best} does not fit after all"
            a, b = pair.medians
            low, high = pair.spread
            measured.append(f"{label}| {', '.join(map(str, longest.tried))} | {max(learning.rescues for learning in learnt)} | {until[0]} to {until[-1]} | "
                            f"{statistics.median(learning.seconds_until for learning in learnt):.2f} | {report['micro_batch']} | {max(curve.fitting(budget))} | {best} | "
                            f"{a * 1e3:.0f} | {b * 1e3:.0f} | **{pair.ratio:.3f}** | {low:.3f} to {high:.3f} |")

            for way, following in (HALVING, NINE_TENTHS):
                tried, seconds, size = tries(curve, batch, budget, name, following, tracked)
                share_of_best = curve.seconds[best] / curve.at(curve.seconds, size)
                simulated.append(f"{label}| {way} | {len(tried)} | {len(tried) - 1} | {seconds:.2f} | {size} | {share_of_best:.2f} |")
            one = statistics.median(learning.rescues for learning in learnt)
            own = statistics.median(learning.seconds_until for learning in learnt)
            sizes = statistics.median(len(learning.tried) for learning in learnt)
            simulated.append(f"{label}| koila (measured) | {sizes:.0f} | {one:.0f} | {own:.2f} | {report['micro_batch']} | {1 / pair.ratio:.2f} |")

            # The first rescue: plain's way to the error, what koila does until the step goes on, and the rest.
            tracked.limit(0)
            tracked.run(f"failing:{name}:{batch}")
            tracked.limit(budget)
            wasted = statistics.median(tracked.run(f"failing:{name}:{batch}")[0] for _ in range(5))
            tracked.limit(0)
            ratio = statistics.median(learning.seconds[0] / learning.steady for learning in learnt)
            step = statistics.median(learning.seconds[0] for learning in learnt)
            steady = statistics.median(learning.steady for learning in learnt)
            conversion = statistics.median(learning.conversion for learning in learnt)
            first.append(f"{label}| {step * 1e3:.0f} | {steady * 1e3:.0f} | **{ratio:.2f}** | {wasted * 1e3:.0f} | {conversion * 1e3:.1f} | "
                         f"{(step - wasted - conversion) * 1e3:.0f} |")
        tracked.close()

    print(f"{machine()}. Pairs of steps in turn, medians of {args.rounds}; {args.learnings} processes each for what comes before.\n")
    table("model | rows | share | budget MiB | sizes tried | rescues | steps until steady | seconds until steady | steady size | largest that fits | best size | best ms | "
          "koila ms | koila / best | quartiles", measured)
    table("model | rows | share | budget MiB | way | sizes tried | failed tries | seconds until steady | steady size | throughput, of the best", simulated)
    table("model | rows | share | budget MiB | first rescued step ms | steady step ms | ratio | until the error ms | conversion ms | the split step ms", first)


def table(head, lines):
    print(f"| {head} |\n{'|---' * len(head.split(' | '))}|", *lines, sep="\n", end="\n\n", flush=True)


if __name__ == "__main__":
    main()
