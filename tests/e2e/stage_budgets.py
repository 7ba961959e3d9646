"""Networks with batch norm under budgets between 15 and 100% of plain's peak: what came of each, in micro-batches of how many rows, and how long a step took.

    python tests/e2e/stage_budgets.py                              every network, both ladders, 24 budgets
    python tests/e2e/stage_budgets.py --network resnet --ladder 0,1 --shares 0.5,0.35

The results are in float64, and are held against plain's: losses, parameters, gradients and running statistics. A step's seconds are the processor's, the fewest of the last steps.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from under_budgets import apart, furthest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib" / "peers"))
from koila_abi import Koila  # noqa: E402
from works import cnn  # noqa: E402

LADDERS = ("0,1,2", "0,1")
EXACT = 1e-7  # of the largest entry, after some steps: a rounding is carried on from step to step


def images(rows):
    return torch.rand(rows, 3, 16, 16), torch.randint(10, (rows,))


def plain_cnn():
    def block(inside, outside, stride):
        return [nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
    layers = [*block(3, 16, 1), *block(16, 16, 1), *block(16, 16, 1), *block(16, 32, 2), *block(32, 32, 1), *block(32, 32, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def mlp():
    layers = [part for inside, outside in [(32, 128), *[(128, 128)] * 5] for part in (nn.Linear(inside, outside), nn.BatchNorm1d(outside), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(128, 10))


NETWORKS = {
    "cnn": (plain_cnn, lambda: images(64)),
    "resnet": (lambda: cnn(depth=9, width=8), lambda: images(64)),
    "mlp": (mlp, lambda: (torch.rand(2048, 32), torch.randint(10, (2048,)))),
}


def train(name, koila, budget, steps):
    """What a run left, the fewest seconds of one of its last steps, its peak and the rows of a micro-batch at its end."""
    torch.manual_seed(3)
    network, data = NETWORKS[name]
    model, (x, y) = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    koila.reset_peak()
    koila.limit(budget)
    losses, seconds = [], []
    with koila.refusals() as reasons:
        try:
            for _ in range(steps):
                began = time.process_time()
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
                seconds.append(time.process_time() - began)
        except torch.OutOfMemoryError:
            return {"outcome": "refused", "why": reasons, "peak": koila.peak(), "rows": None, "seconds": None}
    peak, report = koila.peak(), koila.report()
    koila.limit(0)
    left = [torch.stack(losses), *model.state_dict().values(), *(p.grad for p in model.parameters())]
    regions = report["regions"]
    return {"outcome": "trains", "left": [v.detach().numpy() for v in left], "peak": peak, "rows": regions[-1]["micro_batch"] if regions else len(x), "batch": len(x),
            "regions": len(regions) if budget else 0, "outside": report["devices"]["cpu"].get("outside_peak_bytes", 0), "seconds": min(seconds[-3:])}


def walk(name, shares, steps):
    """For each share of plain's peak: what came of it, as a dictionary."""
    koila = Koila()
    whole = apart(train, name, koila, 0, steps)
    found = []
    for share in shares:
        budget = int(whole["peak"] * share)
        run = apart(train, name, koila, budget, steps) or {"outcome": "crashed", "peak": 0, "rows": None, "seconds": None}
        if run["outcome"] == "trains":
            far = furthest(whole["left"], run.pop("left"))
            run["outcome"] = "over budget" if run["peak"] > budget else "exact" if far < EXACT else f"wrong ({far:.1e})"
        found.append({"network": name, "share": share, "budget": budget, "plain_seconds": whole["seconds"], **run})
    return found


def under(ladder, *arguments):
    """walk() of these arguments in processes that koila is loaded into, as the command line takes them."""
    from harness import clean_environment, koila_environment
    environment = clean_environment(koila_environment("rescue", KOILA_LADDER=ladder, KOILA_LOG="off", OMP_NUM_THREADS="1"))
    said = subprocess.run([sys.executable, __file__, "--inside", *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append", choices=list(NETWORKS))
    parser.add_argument("--ladder", action="append", help="KOILA_LADDER; both of " + " and ".join(LADDERS) + " unless set")
    parser.add_argument("--shares", help="of plain's peak, by commas; 24 of them unless set")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shares = [float(s) for s in args.shares.split(",")] if args.shares else [1 - 0.85 * k / 23 for k in range(24)]
    networks = args.network or list(NETWORKS)
    if args.inside:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)  # a forked child has no others
        print(json.dumps([run for name in networks for run in walk(name, shares, args.steps)]))
        return
    print("| network | KOILA_LADDER | budget, of plain's peak | outcome | rows of a micro-batch | ms of a step | of plain's |\n" + "|---" * 7 + "|")
    for name in networks:
        for ladder in args.ladder or LADDERS:
            for run in under(ladder, "--network", name, "--shares", ",".join(map(str, shares)), "--steps", str(args.steps)):
                seconds = [f"{run['seconds'] * 1e3:.0f}", f"{run['seconds'] / run['plain_seconds']:.2f}"] if run["seconds"] else ["", ""]
                outcome = run["outcome"] if not run.get("why") else "refused: " + "; ".join(dict.fromkeys(run["why"]))[:120]
                print(f"| {name} | {ladder} | {run['share']:.0%} | {outcome} | {run['rows'] or ''} | {' | '.join(seconds)} |", flush=True)


if __name__ == "__main__":
    main()
