"""Trainings that have a budget from their second step on. For each a line of JSON: a digest of all its losses, gradients, parameters and buffers, and what koila did.
test_same_bits.py runs it, as `python same_bits_steps.py [FAMILY...]`, in one environment and another.

PAUSES=FIRST:LAST has the program sleep within each step, for so many milliseconds in the first one and in the last one, and evenly in between: so the clock
of a machine goes on which something else comes or goes.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch

import models  # noqa: F401  (each of these registers its families)
import stages  # noqa: F401
from task import FAMILIES

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

STEPS = int(os.environ.get("STEPS", "14"))
# Rows, and KiB that the budget has room for beside what is there after the first step.
TASKS = {"mlp": (512, 77), "cnn": (64, 480), "batch_norm_res_net": (48, 7500), "gpt": (48, 620), "lstm_batch_first": (64, 595)}


def pause(step):
    first, last = (float(p) for p in os.environ.get("PAUSES", "0:0").split(":"))
    time.sleep((first + (last - first) * step / STEPS) / 1000)


def main():
    koila = Koila()
    for name in sys.argv[1:] or TASKS:
        rows, room = TASKS[name]
        task = FAMILIES[name]()
        torch.manual_seed(0)
        model = task.model()
        optimizer = task.optimizer(model, "adamw")
        data = task.data(rows)
        digest = hashlib.sha256()
        done, peaks = [], []
        for step in range(STEPS):
            koila.reset_peak()
            loss = task.loss(model, *data)
            pause(step)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            for tensor in (loss, *model.parameters(), *[p.grad for p in model.parameters()], *model.buffers()):
                digest.update(tensor.detach().numpy().tobytes())
            del loss
            peaks.append(koila.peak())
            if step == 0:
                koila.limit(koila.live() + room * 1024)
            report = koila.report()
            done.append([report["rescues"], report["regions_total"]["count"], report["micro_batch"], koila.live(), koila.allocations()])
        koila.limit(0)
        print(json.dumps({"family": name, "bits": digest.hexdigest(), "done": done, "peaks": peaks}), flush=True)


if __name__ == "__main__":
    main()
