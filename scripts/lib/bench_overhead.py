"""What koila costs while there is nothing to rescue. Writes Markdown to stdout."""

import argparse
import subprocess
import sys
import time

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
PROCESSES = [
    ("`/bin/true`", ["/bin/true"]),
    ("`python -c pass`", [sys.executable, "-c", "pass"]),
    ("`python -c 'import torch'`", [sys.executable, "-c", "import torch"]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
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
