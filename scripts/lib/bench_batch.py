"""koila::batch, range, chunked and step against the loop by hand, and toma against the same loop in Python. Writes Markdown to stdout."""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

BUILD = os.environ.get("KOILA_BUILD", "build")
ROWS, STEP = 128, 32


def machine() -> str:
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown processor")
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def koila(program: str, rounds: int, **variables: str) -> dict[str, list[float]]:
    """Microseconds of each round, by way."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
    done = subprocess.run([f"{BUILD}/tests/api/{program}", str(rounds)], env=kept | variables, capture_output=True, text=True, check=True)
    first, *lines = done.stdout.splitlines()
    return dict(zip(first.split(";"), map(list, zip(*(map(float, line.split(";")) for line in lines), strict=True)), strict=True))


def toma(rounds: int) -> dict[str, list[float]]:
    """The ways of toma's own benchmark."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "toma"))
    from toma import NoBatchsizeCache, explicit, simple
    from toma import toma as decorated

    torch.set_num_threads(1)
    tensor = torch.zeros((ROWS, 256, 256))

    def fill(chunk, start, end):
        chunk.fill_(1.0)

    def by_hand():
        for start in range(0, ROWS, STEP):
            end = min(start + STEP, ROWS)
            fill(tensor.narrow(0, start, end - start), start, end)

    with_cache = decorated.chunked(fill, initial_step=STEP)
    without_cache = decorated.chunked(fill, initial_step=STEP, cache_type=NoBatchsizeCache)
    ways = {
        "loop by hand": by_hand,
        "toma.chunked": lambda: with_cache(tensor),
        "toma.chunked, no cache": lambda: without_cache(tensor),
        "toma.explicit.chunked": lambda: explicit.chunked(fill, tensor, STEP),
        "toma.simple.chunked": lambda: simple.chunked(fill, tensor, STEP),
    }
    times = {name: [] for name in ways}
    for round_ in range(-3, rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            if round_ >= 0:
                times[name].append((time.perf_counter() - begin) * 1e6)
    return times


def table(times: dict[str, list[float]], bases: dict[str, str]) -> None:
    """Each round's ratio to the same round of its base."""
    print("| | median µs | over the loop by hand | quartiles |\n|---|---|---|---|")
    for name, runs in times.items():
        base = bases.get(name)
        ratio = ["", ""]
        if base is not None:
            low, middle, high = statistics.quantiles([a / b for a, b in zip(runs, times[base], strict=True)], n=4)
            ratio = [f"**{middle:.3f}**", f"{low:.3f} to {high:.3f}"]
        print(f"| {name} | {statistics.median(runs):.1f} | {ratio[0]} | {ratio[1]} |")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="each way once in turn")
    parser.add_argument("--toma-rounds", type=int, default=40)
    args = parser.parse_args()

    hand = "loop by hand"
    over = {"koila::range": hand, "koila::chunked": hand, "koila::chunked, no cache": hand, "koila::batch": "one call by hand"}
    print(f"{machine()}; torch {torch.__version__}, one thread. {ROWS} x 256 x 256 floats filled with one, {STEP} rows at a time.\n")
    print("C++, without koila:\n")
    table(koila("batch_bench", args.rounds), over)
    print("C++, with koila preloaded and a budget:\n")
    table(koila("batch_bench", args.rounds, LD_PRELOAD=os.path.abspath(f"{BUILD}/lib/libkoila.so"), KOILA_CPU_MEMORY="4GiB", KOILA_REPORT="off"), over)
    print("A training step in C++, without koila: four layers of 512 with 256 rows, micro-batches of 64:\n")
    table(koila("step_bench", args.rounds), {"koila::step, all rows": "plain step", "koila::step, one pass": "one pass by hand", "koila::step, two passes": "two passes by hand"})
    print(f"Python, toma of PyPI, {args.toma_rounds} rounds:\n")
    times = toma(args.toma_rounds)
    table(times, dict.fromkeys(list(times)[1:], hand))


if __name__ == "__main__":
    main()
