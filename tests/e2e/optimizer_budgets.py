"""Nets whose parameters dominate, under budgets between what they hold in any case and plain's peak: what each optimizer's step comes to.

    koila run --ladder 0,1 -- python tests/e2e/optimizer_budgets.py --optimizer adamw-foreach --net mlp

Each run is in a forked process of its own, and begins with the same seed. With --out what came of it is pickled, for test_optimizer_budgets.py.
"""

import argparse
import contextlib
import dataclasses
import os
import pickle
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd-decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "sgd-momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1}),
    "sgd-nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "sgd-maximize": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "maximize": True}),
    "adam": (torch.optim.Adam, {"lr": 1e-2}),
    "adam-decay": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.01}),
    "adam-amsgrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True, "maximize": True}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "weight_decay": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-2}),
    "rmsprop-centered": (torch.optim.RMSprop, {"lr": 1e-2, "momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-2, "weight_decay": 0.01}),
    "nadam-decoupled": (torch.optim.NAdam, {"lr": 1e-2, "weight_decay": 0.01, "decoupled_weight_decay": True}),
    "radam": (torch.optim.RAdam, {"lr": 1e-2, "weight_decay": 0.01}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-2, "weight_decay": 0.01}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0, "weight_decay": 0.01}),
    "asgd": (torch.optim.ASGD, {"lr": 1e-2, "weight_decay": 0.01}),
    "rprop": (torch.optim.Rprop, {"lr": 1e-2}),
    "adafactor": (torch.optim.Adafactor, {"lr": 1e-2, "weight_decay": 0.01}),
}
FUSED = ("sgd", "sgd-momentum", "adam", "adamw", "adagrad")
OPTIMIZERS = [f"{kind}-{way}" for kind in KINDS for way in ("foreach", "loop")] + [f"{kind}-fused" for kind in FUSED] + ["lamb-loop"]


class Lamb(torch.optim.Optimizer):
    """LAMB as people write it: a trust ratio of two norms for each parameter."""

    def __init__(self, parameters, lr=1e-2, weight_decay=0.01):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                update = state["mean"] / state["square"].sqrt().add_(1e-6)
                update.add_(p, alpha=group["weight_decay"])
                ratio = (p.norm() / update.norm()).item()
                p.add_(update, alpha=-group["lr"] * ratio)


def make_optimizer(name, parameters):
    kind, _, way = name.rpartition("-")
    if kind == "lamb":
        return Lamb(parameters)
    cls, settings = KINDS[kind]
    return cls(parameters, **settings, **({"fused": True} if way == "fused" else {"foreach": way == "foreach"}))


def linear(width, dtype):
    return torch.nn.Linear(width, width, dtype=dtype)


class Mlp:
    """Three layers as wide as each other."""

    def __init__(self, optimizer, width, dtype):
        self.net = torch.nn.Sequential(linear(width, dtype), torch.nn.Tanh(), linear(width, dtype), torch.nn.Tanh(), linear(width, dtype))
        self.optimizers = [make_optimizer(optimizer, self.net.parameters())]
        self.x = torch.randn(2, width, dtype=dtype)

    def modules(self):
        return [self.net]

    def loss(self):
        return self.net(self.x).pow(2).mean()

    def step(self):
        loss = self.loss()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach())


class Twice(Mlp):
    """The net runs twice in a step."""

    def loss(self):
        return (self.net(self.x) - self.net(self.x.flip(0))).pow(2).mean() + self.net(self.x).mean().pow(2)


class Clipped(Mlp):
    """Gradients are clipped, and a moving average of the parameters is kept."""

    def __init__(self, *args):
        super().__init__(*args)
        self.average = torch.optim.swa_utils.AveragedModel(self.net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def modules(self):
        return [self.net, self.average]

    def step(self):
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.1, foreach=True)
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        self.average.update_parameters(self.net)
        return float(loss.detach())


class Gan:
    """Two nets of linear layers and an optimizer each."""

    def __init__(self, optimizer, width, dtype):
        self.generator = torch.nn.Sequential(linear(width, dtype), torch.nn.Tanh(), linear(width, dtype))
        self.critic = torch.nn.Sequential(linear(width, dtype), torch.nn.Tanh(), torch.nn.Linear(width, 1, dtype=dtype))
        self.ours, self.theirs = make_optimizer(optimizer, self.generator.parameters()), make_optimizer(optimizer, self.critic.parameters())
        self.optimizers = [self.ours, self.theirs]
        self.x, self.real = torch.randn(2, width, dtype=dtype), torch.randn(2, width, dtype=dtype)

    def modules(self):
        return [self.generator, self.critic]

    def step(self):
        fake = self.generator(self.x)
        critic = (self.critic(fake.detach()).sigmoid() - self.critic(self.real).sigmoid()).mean()
        critic.backward()
        self.theirs.step()
        self.theirs.zero_grad()
        loss = -self.critic(fake).sigmoid().mean()
        loss.backward()
        self.ours.step()
        self.ours.zero_grad()
        self.theirs.zero_grad()
        return float(critic.detach()) + float(loss.detach())


NETS = {"mlp": Mlp, "twice": Twice, "clipped": Clipped, "gan": Gan}
STEPS = 3


@dataclasses.dataclass
class Outcome:
    budget: int
    error: str
    state: list  # arrays
    losses: list
    peak: int
    fixed: int
    events: list

    @property
    def trains(self):
        return not self.error


def state_of(training):
    found = [p.detach().numpy().copy() for module in training.modules() for p in [*module.parameters(), *module.buffers()]]
    for optimizer in training.optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                found += [value.numpy().copy() if isinstance(value, torch.Tensor) else value for _, value in sorted(optimizer.state.get(p, {}).items())]
    return found


def totals(report):
    found = {}
    for event in report["oom_events"]:
        key = event["rung"], event["reason"]
        found[key] = found.get(key, 0) + event["count"]
    return found


def run(koila, net, optimizer, width=64, dtype=torch.float64, budget=0, inject=None):
    torch.manual_seed(0)
    training = NETS[net](optimizer, width, dtype)
    before = totals(koila.report()) if koila.library else {}
    koila.reset_peak()
    koila.limit(budget, inject)
    error, losses, fixed = "", [], 0
    try:
        for _ in range(STEPS):
            losses.append(training.step())
            fixed = max(fixed, koila.live() or 0)
    except torch.OutOfMemoryError as caught:
        error = str(caught).split("\n")[0].split(";")[0]
    peak = koila.peak() or 0
    if koila.library:
        koila.limit(0)
    events = []
    if koila.library:
        after = totals(koila.report())
        events = [key for key, count in after.items() if count != before.get(key, 0)]
    gradients = sum(p.nbytes for o in training.optimizers for group in o.param_groups for p in group["params"])
    return Outcome(budget, error, state_of(training), losses, peak, fixed + gradients, events)


def apart(*args, **settings):
    """run() in a process of its own: what an error has left behind is nobody else's."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with open(writing, "wb") as file:
            pickle.dump(run(*args, **settings), file)
            file.flush()
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


def same(a, b):
    if type(a) is not type(b):
        return False
    return (a == b).all() if hasattr(a, "all") else a == b


def judge(whole, outcome):
    """`exact`: to the bit; `refused`; else what is wrong."""
    if not outcome.trains:
        return "refused"
    if outcome.peak > outcome.budget > 0:
        return "over"
    exact = whole.losses == outcome.losses and len(whole.state) == len(outcome.state) and all(same(a, b) for a, b in zip(whole.state, outcome.state))
    if exact:
        return "exact"
    close = all(abs(a - b) <= 1e-9 * abs(a) for a, b in zip(whole.losses, outcome.losses)) and all(
        same(a, b) or (hasattr(a, "shape") and abs(a - b).max() <= 1e-9 * abs(a).max()) for a, b in zip(whole.state, outcome.state))
    return "near" if close else "wrong"


def walk(koila, net, optimizer, count, width):
    """(the run without a limit, [(judgement, run) for each budget])"""
    whole = apart(koila, net, optimizer, width)
    budgets = [whole.fixed + (whole.peak - whole.fixed) * (k + 1) // (count + 1) for k in range(count)]
    runs = [apart(koila, net, optimizer, width, budget=budget) for budget in budgets]
    return whole, [(judge(whole, outcome), outcome) for outcome in runs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="append", choices=list(NETS))
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS)
    parser.add_argument("--budgets", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a forked child has no others
    koila, found = Koila(), {}
    run(koila, "mlp", "adamw-foreach", 8)  # what PyTorch imports at the first step is there for all children
    with contextlib.suppress(BrokenPipeError):
        for net in args.net or NETS:
            for optimizer in args.optimizer or OPTIMIZERS:
                whole, runs = walk(koila, net, optimizer, args.budgets, args.width)
                picture = "".join({"exact": "#", "near": "~", "refused": "."}.get(judged, judged[0]) for judged, _ in runs)
                reasons = {reason for _, outcome in runs for rung, reason in outcome.events if reason}
                print(f"{net:8} {optimizer:24} fixed {whole.fixed:9,} peak {whole.peak:9,} `{picture}` {'; '.join(sorted(reasons))[:300]}", flush=True)
                found[net, optimizer] = whole.fixed, whole.peak, [(judged, outcome.budget, outcome.error, outcome.events) for judged, outcome in runs]
    if args.out:
        Path(args.out).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
