"""Optimizers whose step runs out of memory, at each of its allocations in turn and under budgets, in one process: model and optimizer come into being
again from the same seed. test_optimizers.py runs it, as `python optimizer_steps.py OUT`; what came of it all is pickled to OUT.
"""

import pickle
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

VARIANTS = {
    f"{name}-{way}": (kind, settings | {"foreach" if way == "loop" else way: way != "loop"})
    for name, kind, settings in (("adam", torch.optim.Adam, {"lr": 1e-2}), ("adamw", torch.optim.AdamW, {"lr": 1e-2}),
                                 ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}))
    for way in (("foreach", "loop", "fused") if name == "adamw" else ("foreach", "loop"))
}
STEPS = 3
ROOM = 4096  # for all that belongs to the small parameters, and far less than the large one takes


class Training:
    def __init__(self, variant, koila):
        self.koila = koila
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 600, bias=False))
        kind, settings = VARIANTS[variant]
        self.optimizer = kind(self.model.parameters(), **settings)

    def gradients(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(2, 8)).pow(2).mean().backward()

    def state(self):
        """Parameters, gradients and the optimizer's state as NumPy arrays, which are no tensors to koila."""
        found = {}
        for name, p in self.model.named_parameters():
            found |= {name: p.detach().numpy().copy(), f"{name}/gradient": p.grad.numpy().copy()}
            for slot, value in self.optimizer.state.get(p, {}).items():
                found[f"{name}/{slot}"] = value.numpy().copy() if isinstance(value, torch.Tensor) else value
        return found

    def run(self, at=None, inject=None, room=0, budget=0):
        """All steps; the optimizer's step `at` with `inject`, or with `room` bytes beside what is in use; or everything under a `budget`."""
        koila, found = self.koila, {"error": "", "updated": 0, "allocations": [], "state": []}
        before = koila.report()
        koila.limit(budget)
        for step in range(1, STEPS + 1):
            self.gradients()
            was = [p.detach().numpy().copy() for p in self.model.parameters()]
            start = koila.allocations()
            if step == at:
                koila.limit(koila.live() + room if room else 0, inject)
            try:
                self.optimizer.step()
            except torch.OutOfMemoryError as error:
                found["error"] = str(error).split("\n")[0].split(";")[0]
            if not budget:
                koila.limit(0)
            found["state"].append(self.state())
            if koila.library:
                found["allocations"].append(koila.allocations() - start)
            if found["error"]:
                found["updated"] = sum((p.detach().numpy() != old).any() for p, old in zip(self.model.parameters(), was))
                break
        koila.limit(0)
        if koila.library:
            events = totals(koila.report()["oom_events"])
            for event, count in totals(before["oom_events"]).items():
                events[event] -= count
            found["events"] = [event for event, count in events.items() for _ in range(count)]
        return found


def totals(events):
    found = {}
    for event in events:
        key = event["rung"], event["reason"]
        found[key] = found.get(key, 0) + event["count"]
    return found


def main(out):
    koila = Koila()
    found = {}
    for variant in VARIANTS:
        found[variant, "whole"] = whole = Training(variant, koila).run()
        if not koila.library:
            continue
        for step in (1, 2):
            for number in range(1, whole["allocations"][step - 1] + 1):
                found[variant, "inject", step, number] = Training(variant, koila).run(step, inject=f"nth:{number}")
            found[variant, "room", step] = Training(variant, koila).run(step, room=ROOM)
        training = Training(variant, koila)
        koila.reset_peak()
        training.gradients()
        budget = koila.peak() + ROOM
        del training
        found[variant, "budget"] = Training(variant, koila).run(budget=budget)
    with open(out, "wb") as file:
        pickle.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
