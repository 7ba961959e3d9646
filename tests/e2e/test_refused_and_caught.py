"""A program that catches the error of a step and goes on to a smaller one: nothing of the step that was refused stays in memory."""

import subprocess
import sys

import pytest
from harness import clean_environment, koila_environment

PROGRAM = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

def step(rows):
    net = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 5))
    hidden = net[:2](torch.randn(rows, 20))
    for _ in range(4):
        hidden = hidden + 0.1 * torch.randn_like(hidden)
    out = F.normalize(net[2](hidden), dim=1)
    loss = F.cross_entropy((out @ out.t() / 0.5).masked_fill(torch.eye(rows, dtype=torch.bool), -1e9), torch.arange(rows).roll(1))
    loss.backward()
    return loss.item()

for rows in (200, 60, 60, 60):
    torch.manual_seed(rows)
    try:
        print(rows, step(rows))
    except torch.OutOfMemoryError:
        print(rows, "refused")
"""


def run(environment):
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_steps_after_it_train():
    plain = run(clean_environment({}))
    koila = run(clean_environment(koila_environment("rescue", KOILA_CPU_MEMORY="290000B", KOILA_LADDER="0,1")))
    assert koila[0] == "200 refused"
    for line, expected in zip(koila[2:], plain[2:], strict=True):  # the second may have been refused while koila learned
        assert abs(float(line.split()[1]) - float(expected.split()[1])) < 1e-12


LOOKED_AT = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
first, second, head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
words = nn.Embedding(9, 12)
scale = torch.linspace(0.5, 1.5, 10)[:, None]
given, labels, tokens = torch.randn(24, 5, 12), torch.randint(0, 4, (24,)), torch.randint(0, 9, (24, 5))
mask = torch.arange(5) < torch.randint(1, 6, (24, 1))
kept = []

def wide(a):
    return torch.tanh(a[..., None, :] * scale).mean(-2)

def step():
    v = wide(first(given)).mean(1)
    f, m = given.reshape(120, 12), mask.view(-1)
    z = wide(first(f[m]))
    o = torch.zeros(120, 12)
    o.index_put_((m.nonzero()[:, 0],), z)
    logs = torch.where(v > 0, v.log(), 0 * v)
    kept.append(torch.isfinite(logs).all().detach().clone())
    v = v + logs.detach().clamp(-1, 1) * 0.1
    second.bias.requires_grad_(False)
    a = given + second.bias
    second.bias.requires_grad_(True)
    v = F.silu(first(v))
    again = checkpoint(lambda t: wide(first(t)), o.view(24, 5, 12), use_reentrant=False)
    a = words(tokens) + a * 0.5
    loss = F.cross_entropy(head(wide(v) + a.mean(1)), labels) + z.pow(2).mean() * 0.1
    loss.backward()
    del again

try:
    step()
    print("trained")
except torch.OutOfMemoryError:
    print("refused")
for value in kept:
    try:
        print(bool(value.numpy().copy()))
    except torch.OutOfMemoryError:
        print("lost")
"""


def test_numpy_looks_at_what_is_left_of_a_step_that_was_refused():
    """It has its value, or there is an out-of-memory error; a digest was once taken of memory that was gone."""
    lost = 0
    budgets = [{"KOILA_CPU_MEMORY": f"{budget}KiB"} for budget in (90, 100, 105, 110, 275, 290, 305, 320, 350)]
    for settings in [*budgets, {"KOILA_INJECT_OOM": "random:0.3:1"}, {"KOILA_INJECT_OOM": "random:0.3:4"}]:  # the last end a conversion half way
        environment = clean_environment(koila_environment("rescue", KOILA_LADDER="0,1", **settings))
        done = subprocess.run([sys.executable, "-c", LOOKED_AT], env=environment, timeout=120, capture_output=True, text=True)
        assert done.returncode == 0, (settings, done.returncode, done.stderr)
        assert done.stdout.split() in (["refused", "True"], ["trained", "True"], ["refused", "lost"])
        lost += "lost" in done.stdout
    assert lost > 0


MAKES_ROOM = """
import gc

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
cache = torch.zeros(100_000)
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def step(given, labels):
    gc.collect()
    optimizer.zero_grad()
    given = given.clone().requires_grad_()
    hidden = net[:3](given)
    out = net[3:](hidden)
    torch.autograd.grad(F.cross_entropy(out, labels), hidden, retain_graph=True)
    again = hidden.clone()
    pull = torch.autograd.grad(net[3:](again).gather(1, labels[:, None]).unbind(), again)[0]
    loss = F.cross_entropy(out, labels) + pull.abs().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

for number in range(4):
    given, labels = torch.randn(400, 8), torch.randint(0, 3, (400,))
    while True:
        try:
            print("loss", step(given, labels))
            break
        except torch.OutOfMemoryError:
            print("ran out")
            if cache is None:
                raise
            cache = None
"""


def test_a_program_that_makes_room_goes_on_at_the_full_batch():
    """Plain PyTorch runs out once, and trains on when the cache is gone. So it is under koila, which refuses the step that ran out, and learns nothing of it."""
    def train(mode):
        return run_program(MAKES_ROOM, koila_environment(mode, KOILA_CPU_MEMORY="2174170B", KOILA_LADDER="0,1"))

    plain, koila = train("track"), train("rescue")
    assert plain.count("ran out") == 1
    assert koila.count("ran out") <= 1
    for line, expected in zip(koila.splitlines()[koila.count("ran out"):], plain.splitlines()[1:], strict=True):
        assert abs(float(line.split()[1]) - float(expected.split()[1])) < 1e-12


RUNS_ONCE = """
import contextlib
import functools
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

def policy(context, op, *arguments, **named):
    return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

how = {"context_fn": functools.partial(create_selective_checkpoint_contexts, policy)} if sys.argv[1] == "selective" else {"debug": True}

def train(**how):
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        hidden = net[:2](torch.randn(200, 8))
        hidden = checkpoint(net[2:4], hidden, use_reentrant=False, **how) if how else net[2:4](hidden)
        optimizer.zero_grad()
        loss = F.cross_entropy(net[4](hidden), torch.randint(0, 3, (200,)))
        loss.backward()
        optimizer.step()
        print(loss.item())

try:
    if len(sys.argv) > 2:
        train()
    train(**how)
except torch.OutOfMemoryError:
    print("ran out")
"""


def run_program(program, environment, *arguments):
    done = subprocess.run([sys.executable, "-c", program, *arguments], env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["selective", "debug"])
def test_a_checkpoint_that_may_run_once(how):
    """torch.utils.checkpoint raises an error of its own when such a function runs once more; plain PyTorch has run out of memory by then."""
    plain = run_program(RUNS_ONCE, clean_environment({}), how)
    peaks = {"selective": 577536, "debug": 700000}
    outcomes = set()
    for share in (97, 94, 90, 86, 80):
        environment = koila_environment("rescue", KOILA_CPU_MEMORY=f"{peaks[how] * share // 100}B", KOILA_LADDER="0,1")
        found = run_program(RUNS_ONCE, environment, how).splitlines()
        outcomes.add(found[-1])
        for line, expected in zip(found, plain.splitlines()):
            assert line == "ran out" or abs(float(line) - float(expected)) < 1e-12
    assert "ran out" in outcomes
    whole = run_program(RUNS_ONCE, clean_environment({}), how, "first").splitlines()
    split = run_program(RUNS_ONCE, koila_environment("rescue", KOILA_MICROBATCH="50"), how, "first").splitlines()
    for line, expected in zip(split, whole):
        assert line == "ran out" or abs(float(line) - float(expected)) < 1e-12
