"""What koila costs while there is nothing to rescue. Writes Markdown to stdout."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import Pair, Worker, environment, machine

CHAINS = [
    ("add", "`y = y + 1.0`", 1000),
    ("add_inplace", "`x.add_(1.0)`", 1000),
    ("view", "`x.view(...)`", 1000),
    ("linear", "`F.linear`", 1000),
    ("grad", "`y * w` with grad, and backward", 1000),
]
STEPS = [
    ("small_gpt", "small GPT: 2 layers of 64, 8 x 64 tokens, AdamW"),
    ("step:gpt:16", "examples/char_gpt, 16 rows"),
    ("step:cnn:128", "examples/digits_cnn, 128 rows"),
    ("step:lstm:64", "examples/text_lstm, 64 rows"),
]
SMALL_STEPS = [
    ("tiny_mlp", "tiny MLP: 20 layers of 32, 8 rows, SGD", 1000),
    ("transformer", "transformer: 2 layers of 64, 4 x 32 tokens, AdamW", 300),
]
PROCESSES = [
    ("`/bin/true`", ["/bin/true"]),
    ("`python -c pass`", [sys.executable, "-c", "pass"]),
    ("`python -c 'import torch'`", [sys.executable, "-c", "import torch"]),
]


def small_step(name, steps, **settings):
    """(seconds of a step, page faults per step) in a process of its own: see step_time.py."""
    command = [sys.executable, str(Path(__file__).with_name("step_time.py")), name, str(steps)]
    return json.loads(subprocess.run(command, env=environment(**settings), check=True, capture_output=True, text=True).stdout)


def small_steps(rounds):
    """One percent of a step of a millisecond is less than what other work on the machine adds to it. That only ever adds, so the lower quartile of many steps
    is taken; and what one process differs from another by, in processes in turn."""
    print("\n| small step, lower quartiles | plain ms | track | koila | track's ratio | koila's ratio | page faults per step |\n|---|---|---|---|---|---|---|")
    modes = [{}, {"KOILA_MODE": "track"}, {"KOILA_MODE": "rescue"}]
    for name, text, steps in SMALL_STEPS:
        taken = [[] for _ in modes]
        for i in range(rounds):
            for mode in sorted(range(len(modes)), key=lambda m: (m + i) % len(modes)):
                taken[mode].append(small_step(name, steps, **modes[mode]))
        times = [statistics.median(seconds for seconds, _ in of) * 1e3 for of in taken]
        ratios = [statistics.median(with_koila[0] / plain[0] for with_koila, plain in zip(of, taken[0])) for of in taken[1:]]
        faults = " / ".join(f"{statistics.median(faults for _, faults in of):.1f}" for of in taken)
        print(f"| {text} | {times[0]:.3f} | {times[1]:.3f} | {times[2]:.3f} | {ratios[0]:.3f} | {ratios[1]:.3f} | {faults} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--processes", type=int, default=7, help="of each kind, for the small steps")
    parser.add_argument("--mode", default="rescue", choices=["off", "track", "rescue", "lazy"])
    args = parser.parse_args()

    plain, koila = Worker(), Worker(KOILA_MODE=args.mode)

    def pair(name, repetitions, rounds=args.rounds):
        return Pair(lambda: plain.run(name, repetitions)[0], lambda: koila.run(name, repetitions)[0], rounds)

    print(f"{machine()}. Pairs of runs in turn, medians of {args.rounds}; KOILA_MODE={args.mode}.\n")
    print("| operator, four elements | plain µs | koila µs | cost per operator µs |\n|---|---|---|---|")
    for name, text, operators in CHAINS:
        result = pair(name, 5)
        scale = 1e6 / (5 * operators)
        a, b = result.medians
        print(f"| {text} | {a * scale:.2f} | {b * scale:.2f} | {result.difference * scale:+.2f} |", flush=True)

    print("\n| training step | plain ms | koila ms | ratio | quartiles |\n|---|---|---|---|---|")
    for name, text in STEPS:
        result = pair(name, 3)
        a, b = result.medians
        low, high = result.spread
        print(f"| {text} | {a / 3 * 1e3:.2f} | {b / 3 * 1e3:.2f} | {result.ratio:.3f} | {low:.3f} to {high:.3f} |", flush=True)
    plain.close()
    koila.close()
    small_steps(args.processes)

    print("\n| process | plain ms | koila ms | cost ms |\n|---|---|---|---|")
    for text, command in PROCESSES:
        def timed(env):
            began = time.perf_counter()
            subprocess.run(command, env=env, check=True)
            return time.perf_counter() - began

        without, preloaded = environment(), environment(KOILA_MODE=args.mode)
        result = Pair(lambda: timed(without), lambda: timed(preloaded), 7 if "torch" in text else args.rounds)
        a, b = result.medians
        print(f"| {text} | {a * 1e3:.1f} | {b * 1e3:.1f} | {result.difference * 1e3:+.1f} |", flush=True)


if __name__ == "__main__":
    main()
