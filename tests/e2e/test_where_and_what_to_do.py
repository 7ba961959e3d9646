"""A refusal names the line of the program and what to do, and an optimizer's first step by how much its state does not fit."""

import json
import subprocess
import sys

from harness import clean_environment, koila_environment

ADAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
optimizer = torch.optim.Adam(model.parameters())
def train():
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
train()
"""


def test_the_state_of_an_optimizer(tmp_path):
    script, report = tmp_path / "adam.py", tmp_path / "report.json"
    script.write_text(ADAM)
    environment = koila_environment("rescue", KOILA_REPORT=str(report), KOILA_CPU_MEMORY="22M", KOILA_LADDER="0,1")
    done = subprocess.run([sys.executable, str(script)], env=clean_environment(environment), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "OutOfMemoryError" in done.stderr
    (refusal,) = json.loads(report.read_text())["refusals"]
    parameters = 8 * 4 * (512 * 512 + 512)
    lacking = parameters + refusal["live_bytes"] - refusal["budget_bytes"] - refusal_made(refusal)
    assert f"for {parameters / 2**20:.1f} MiB of parameters it comes to {parameters / 2**20:.1f} MiB at least" in refusal["reason"], refusal
    assert f"{lacking / 2**20:.1f} MiB more than there is room for. It was called at {script.name}:8 in train." in refusal["reason"].replace(f"{tmp_path}/", ""), refusal
    assert "less state" in refusal["do"]


def refusal_made(refusal):
    """What was made of the state: all beyond the parameters and their gradients."""
    return refusal["live_bytes"] - 2 * 8 * 4 * (512 * 512 + 512)


IN_BACKWARD = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
def train():
    loss = model(torch.randn(4096, 512)).square().mean()
    loss.backward(create_graph=True)
train()
"""


def test_a_backward_pass_that_is_refused_is_no_step(tmp_path):
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(IN_BACKWARD)
    environment = koila_environment("rescue", KOILA_REPORT=str(report), KOILA_CPU_MEMORY="60M", KOILA_LADDER="0,1")
    done = subprocess.run([sys.executable, str(script)], env=clean_environment(environment), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "OutOfMemoryError" in done.stderr
    found = json.loads(report.read_text())
    assert found["steps"] == 0 and found["refusals"][-1]["phase"] == "backward", found["refusals"]
    assert "It was called at" in found["refusals"][-1]["reason"] and found["refusals"][-1]["do"].startswith("a smaller batch")
