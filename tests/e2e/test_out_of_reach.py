"""A program that asks for more memory than there is, to find out, and catches the error: its step is none that ran out."""

import subprocess
import sys

from harness import clean_environment, koila_environment

PROGRAM = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
net = nn.Sequential(nn.Linear(20, 96), nn.Tanh(), nn.Linear(96, 5))
for step in range(3):
    hidden = net[:2](torch.randn(64, 20))
    if step == 0:
        try:
            torch.empty(2**50)
        except RuntimeError:
            print("as expected")
    hidden.grad_fn.register_hook(lambda made, came: print(came[0].sum().item()))  # which a step in micro-batches refuses
    loss = F.cross_entropy(net[2:](hidden), torch.randint(0, 5, (64,)))
    net.zero_grad()
    loss.backward()
    print(loss.item())
"""


def test_a_probe_splits_no_step():
    plain, koila = (subprocess.run([sys.executable, "-c", PROGRAM], env=environment, timeout=120, capture_output=True, text=True)
                    for environment in (clean_environment({}), clean_environment(koila_environment("rescue"))))
    assert plain.returncode == 0, plain.stderr
    assert koila.returncode == 0, koila.stderr
    assert koila.stdout == plain.stdout
