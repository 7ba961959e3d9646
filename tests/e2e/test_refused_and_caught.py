"""A program that catches the error of a step and goes on to a smaller one: nothing of the step that was refused stays in memory."""

import subprocess
import sys

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
