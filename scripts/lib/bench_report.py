"""What the report costs: tracking, and what is written at exit after many steps. Writes Markdown to stdout."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import Pair, Worker, environment, machine

STEPS = [
    ("step:gpt:16", "examples/char_gpt, 16 rows"),
    ("step:cnn:128", "examples/digits_cnn, 128 rows"),
    ("step:lstm:64", "examples/text_lstm, 64 rows"),
    ("step:mlp:256", "examples/digits_mlp, 256 rows"),
]

# Prints when the program itself is done; what comes after is the exit.
LONG_RUN = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
data, target = torch.randn(64, 16), torch.randn(64, 4)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(data), target).backward()
    optimizer.step()
print(time.time(), flush=True)
"""


def exit_seconds(steps, **settings):
    env = environment(**settings) if settings else environment()
    done = subprocess.run([sys.executable, "-c", LONG_RUN, str(steps)], env=env, capture_output=True, text=True, check=True)
    return time.time() - float(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    print(f"{machine()}. Pairs of runs in turn, medians of {args.rounds}.\n")

    print("| training step | plain ms | `track` ms | ratio | quartiles |\n|---|---|---|---|---|")
    plain, track = Worker(), Worker(KOILA_MODE="track")
    for name, text in STEPS:
        result = Pair(lambda: plain.run(name, 3)[0], lambda: track.run(name, 3)[0], args.rounds)
        a, b = result.medians
        low, high = result.spread
        print(f"| {text} | {a / 3 * 1e3:.2f} | {b / 3 * 1e3:.2f} | {result.ratio:.3f} | {low:.3f} to {high:.3f} |", flush=True)
    plain.close()
    track.close()

    print(f"\n| after {args.steps} steps | size | exit s |\n|---|---|---|")
    print(f"| without koila | | {exit_seconds(args.steps):.2f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for form in ("txt", "json", "html", "csv", "pickle"):
            path = Path(folder) / f"run.{form}"
            seconds = exit_seconds(args.steps, KOILA_MODE="rescue", KOILA_REPORT=str(path))
            print(f"| `.{form}` | {path.stat().st_size / 1e6:.2f} MB | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
