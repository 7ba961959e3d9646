"""Which of a program's autograd.Functions are taken for element-wise ones, by their text; and what becomes of one whose surroundings change."""

import json
import subprocess
import sys

import pytest

from harness import HERE, clean_environment, koila_environment


def test_what_the_text_shows():
    said = subprocess.run([sys.executable, HERE / "element_wise.py"], env=clean_environment({}), check=True, timeout=100, stdout=subprocess.PIPE, text=True).stdout
    said = json.loads(said)
    assert len(said) > 25 and said == {name: not name.startswith("IsNot") for name in said}


CHANGES = """
import sys, torch
WIDTH = 2.0
class Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * WIDTH
    @staticmethod
    def backward(ctx, g):
        return g * WIDTH
torch.manual_seed(0)
weight = torch.randn(64, 64, requires_grad=True)
try:
    loss = Wide.apply((torch.randn(512, 64) @ weight).tanh()).sigmoid().square().mean()
    WIDTH = 3.0
    loss.backward()
    print(loss.item(), weight.grad.abs().sum().item())
except torch.OutOfMemoryError:
    print("refused")
"""


@pytest.mark.parametrize("settings", [{"KOILA_CPU_MEMORY": "900KiB"}, {"KOILA_MICROBATCH": "100"}], ids=["budget", "micro-batches"])
def test_a_number_that_changes_within_the_step(tmp_path, settings):
    program = tmp_path / "changes.py"
    program.write_text(CHANGES)

    def run(environment):
        return subprocess.run([sys.executable, program], env=environment, check=True, timeout=100, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout

    plain = run(clean_environment({}))
    said = run(clean_environment(koila_environment("rescue", KOILA_LADDER="0,1", **settings)))
    assert said == "refused\n" or [float(v) for v in said.split()] == pytest.approx([float(v) for v in plain.split()], rel=1e-4)
