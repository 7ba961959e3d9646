"""Trains in one way after the other and prints, as JSON, what koila has seen by then, for test_advice.py."""

import json
import sys

import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, "scripts/lib")
from koila_abi import Koila  # noqa: E402

STEPS = 20  # the graph is walked in every 16th step
seen = {}


def network(dtype=torch.float32):
    return torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]).to(dtype)


def train(name, optimizer=torch.optim.Adam, forward=None, before=None, after=None, dtype=torch.float32, accumulate=1, **options):
    model = network(dtype)
    optimizer = optimizer(model.parameters(), lr=0.01, **options)
    forward = forward or (lambda model, x: model(x).square().mean())
    before = before or optimizer.zero_grad
    for step in range(STEPS * accumulate):
        if step % accumulate == 0:
            before(optimizer) if before != optimizer.zero_grad else before()
        loss = forward(model, torch.randn(512, 64, dtype=dtype))
        if after:
            after(optimizer)
        loss.backward()
        if step % accumulate == accumulate - 1:
            optimizer.step()
    if name not in ("zeroed", "zeroed_late"):
        optimizer.zero_grad()
    model(torch.randn(512, 64, dtype=dtype)).square().mean().backward()  # what the last update did is seen by then
    seen[name] = Koila().report()["facts"]


def under_autocast(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x).square().mean()


def evaluate(model, x):
    for _ in range(4):
        model(torch.randn(512, 64)).argmax(1).float().mean().item()
    return model(x).square().mean()


def evaluate_without_graphs(model, x):
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(512, 64)).argmax(1).float().mean().item()
    return model(x).square().mean()


torch.set_num_threads(1)
train("nothing", foreach=False)
train("accumulating", foreach=False, accumulate=3)
train("no_grad", foreach=False, forward=evaluate_without_graphs)
train("zeroed", foreach=False, before=lambda optimizer: optimizer.zero_grad(set_to_none=False))
train("zeroed_late", foreach=False, before=lambda optimizer: None, after=lambda optimizer: optimizer.zero_grad())
train("autocast", foreach=False, forward=under_autocast)
train("checkpoint", foreach=False, forward=lambda model, x: checkpoint(model, x, use_reentrant=False).square().mean())
train("reentrant", foreach=False, forward=lambda model, x: checkpoint(model, x.requires_grad_(), use_reentrant=True).square().mean())
train("half", foreach=False, dtype=torch.bfloat16)
train("foreach", foreach=True)
train("fused", fused=True)
train("evaluation", foreach=False, forward=evaluate)
print(json.dumps(seen))
