"""torch.utils.swap_tensors() takes no tensor that anything but Python refers to: koila lets go of what it has noted."""

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
HOW = {how!r}
if HOW in ("load", "to"):
    torch.__future__.set_swap_module_params_on_conversion(True)
net = nn.Sequential(nn.Linear(20, 96), nn.Tanh(), nn.Linear(96, 5))
for _ in range(3):
    net.zero_grad()
    x = torch.randn(64, 20)
    loss = F.cross_entropy(net(x), torch.randint(0, 5, (64,)))
    loss.backward()
    print(loss.item())
    del loss
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
    if HOW == "load":
        net.load_state_dict({{name: value * 0.99 for name, value in net.state_dict().items()}})
    elif HOW == "to":
        net.float()
        net.double()
    else:
        a, b = torch.zeros(64, 20), x + 1
        torch.utils.swap_tensors(a, b)
        print(a.sum().item())
"""


def run(how, environment):
    return subprocess.run([sys.executable, "-c", PROGRAM.format(how=how)], env=environment, timeout=120, capture_output=True, text=True)


@pytest.mark.parametrize("how", ["load", "to", "made"])
@pytest.mark.parametrize("mode, microbatch", [("rescue", None), ("track", None), ("lazy", None), ("rescue", 8)])
def test_swap(how, mode, microbatch):
    plain, koila = run(how, clean_environment({})), run(how, clean_environment(koila_environment(mode, microbatch, KOILA_LOG="off")))
    assert plain.returncode == 0, plain.stderr
    assert koila.returncode == 0, koila.stderr
    assert [float(line) for line in koila.stdout.splitlines()] == pytest.approx([float(line) for line in plain.stdout.splitlines()], rel=1e-12)
