"""What koila costs a call of the CUDA runtime: pairs of cudaMalloc and cudaFree over the simulated runtime. Writes Markdown to stdout."""

import argparse
import os
import statistics
import subprocess

BUILD = os.environ.get("KOILA_BUILD", "build")
PROGRAM = f"{BUILD}/tests/cuda/programs/bench"


def machine() -> str:
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown processor")
    return f"{model}, {os.cpu_count()} cores"


def measure(threads: int, pairs: int, **variables: str) -> tuple[float, float]:
    """The median and the 99th percentile of one run, in nanoseconds."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KOILA_", "SIM_")) and k != "LD_PRELOAD"}
    done = subprocess.run([PROGRAM, str(threads), str(pairs)], env=kept | variables, capture_output=True, text=True, check=True)
    p50, p99, _ = map(float, done.stdout.split())
    return p50, p99


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=100_000, help="per thread and round")
    args = parser.parse_args()

    koila = {"LD_PRELOAD": os.path.abspath(f"{BUILD}/lib/libkoila.so"), "KOILA_REPORT": "off"}
    configurations = {
        "plain": {},
        "KOILA_MODE=off": koila | {"KOILA_MODE": "off"},
        "koila": koila,
        "koila with a budget": koila | {"KOILA_DEVICE_MEMORY": "4GiB"},
    }
    print(f"{machine()}. {args.rounds} runs in turn of {args.pairs} pairs a thread; medians over the runs, the clock's own time included.\n")
    print("| threads | | p50 ns | p99 ns | added at p50 ns | added at p99 ns |\n|---|---|---|---|---|---|")
    for threads in (1, 8):
        runs = {name: [] for name in configurations}
        for _ in range(args.rounds):
            for name, variables in configurations.items():
                runs[name].append(measure(threads, args.pairs, **variables))
        base = [statistics.median(column) for column in zip(*runs["plain"], strict=True)]
        for name, results in runs.items():
            p50, p99 = (statistics.median(column) for column in zip(*results, strict=True))
            added = "" if name == "plain" else f"{p50 - base[0]:+.0f}"
            added_99 = "" if name == "plain" else f"{p99 - base[1]:+.0f}"
            print(f"| {threads} | {name} | {p50:.0f} | {p99:.0f} | {added} | {added_99} |", flush=True)


if __name__ == "__main__":
    main()
