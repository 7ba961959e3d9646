"""A scripted net reads its values without gradients and hangs them on a graph of its own afterwards: whichever allocation fails, no part of a gradient is lost."""

import subprocess
import sys
import textwrap

import pytest

from harness import ROOT, clean_environment, koila_environment

START = """import sys
sys.path.append(sys.argv[1])
import torch
import torch.nn as nn
from koila_abi import Koila

"""

PROGRAM = START + textwrap.dedent("""
    koila = Koila()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(16, 64)

        def forward(self, x):
            h = torch.tanh(self.a(x))
            g = torch.concat([h, h * 2], dim=1)
            return h * 3 + g[:, :64] * 5 + g[:, 64:] * 7

    torch.manual_seed(0)
    plain = Net().double()
    net = torch.jit.script(plain)
    for step in range(2):  # the second runs the net's own graph
        x = torch.randn(128, 16).double()
        if step:
            koila.limit(0, "nth:" + sys.argv[2])
        out = net(x)
        loss = out.sum()
        net.zero_grad()
        loss.backward()
        koila.limit(0, None)
        h = torch.tanh(plain.a(x)).detach()
        d = (1 - h * h)
    print([round(float(share), 6) for share in (net.a.bias.grad / d.sum(0))[:3]])
""")


def run(folder, program, *arguments):
    (folder / "program.py").write_text(program)  # TorchScript reads the source
    return subprocess.run([sys.executable, folder / "program.py", ROOT / "scripts" / "lib", *arguments], env=clean_environment(koila_environment("rescue", KOILA_LADDER="1")),
                          capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("number", (3, 5, 7))
def test_no_part_of_a_gradient_is_lost(tmp_path, number):
    done = run(tmp_path, PROGRAM, str(number))
    assert done.stdout == "[22.0, 22.0, 22.0]\n" and "rescued" in done.stderr, done.stdout + done.stderr[-2000:]


FORKED = START + textwrap.dedent("""
    koila = Koila()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 64)

        def forward(self, x):
            h = torch.tanh(self.a(x))
            other = torch.jit.fork(self.b, h * 2)
            return torch.tanh(self.b(h)) + torch.jit.wait(other)

    torch.manual_seed(0)
    net = torch.jit.script(Net().double())

    def step(failure):
        koila.limit(0, failure)
        net.zero_grad()
        net(x).square().mean().backward()
        koila.limit(0, None)
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    for number in range(1, 7):
        x = torch.randn(128, 16).double()
        expected, actual = step(None), step(f"nth:{number}")
        assert torch.allclose(expected, actual, rtol=1e-12, atol=1e-14), number
    print("exact")
""")


@pytest.mark.parametrize("forked", (False, True))
def test_the_graph_that_a_script_hangs_on(tmp_path, forked):
    """What it has saved are tensors that no operator has made. A forked part is of the step, on whichever thread PyTorch would have run it."""
    done = run(tmp_path, FORKED if forked else FORKED.replace("torch.jit.fork(self.b, h * 2)", "self.b(h * 2)").replace("torch.jit.wait(other)", "other"))
    assert done.stdout == "exact\n" and done.stderr.count("rescued") >= 3 and "refused" not in done.stderr, done.stdout + done.stderr[-2000:]
