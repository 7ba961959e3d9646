"""Errors of the program's own are the plain run's, to the letter, also in a step that runs in micro-batches."""

import subprocess
import sys
import textwrap

from harness import clean_environment, koila_environment

SCRIPT = textwrap.dedent("""
    import torch
    model = torch.nn.Linear(12, 5)
    for step in range(3):
        h = model(torch.randn(14, 12))
        for wrong in (lambda: h.view(3, -1, 7), lambda: h @ torch.randn(7, 7), lambda: torch.cat([h, torch.randn(14, 12)]), lambda: h[14],
                      lambda: h + torch.randn(13, 5), lambda: torch.nn.functional.cross_entropy(h, torch.zeros(13, dtype=torch.long)),
                      lambda: h.reshape(4, 4), lambda: h.permute(0, 2), lambda: h.relu_().pow(2).backward()):
            try:
                wrong()
            except Exception as error:
                print(type(error).__name__, error)
        h = model(torch.randn(14, 12))
        h.sum().backward()
""")


# Each parameter in turn is written to between forward and backward: an error where backward needs it, and only there.
CHANGED = textwrap.dedent("""
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.LayerNorm(9), torch.nn.Tanh(), torch.nn.Linear(9, 5))
    model(torch.ones(14, 12)).pow(2).mean().backward()  # the steps that follow are like it
    model.zero_grad()
    for step in range(2):
        for name, parameter in model.named_parameters():
            loss = model(torch.ones(14, 12) / (step + 1)).pow(2).mean()
            with torch.no_grad():
                parameter.mul_(0.5)
            try:
                loss.backward()
                print(name, "trains", [round(p.grad.norm().item(), 5) for p in model.parameters()])
            except RuntimeError as error:
                print(name, "RuntimeError", str(error)[:94])
            model.zero_grad()
""")


def output(environment, script=SCRIPT):
    return subprocess.run([sys.executable, "-c", script], env=clean_environment(environment), capture_output=True, text=True, check=True).stdout


def test_errors_are_the_programs_own():
    assert output(koila_environment("rescue", 3)) == output({})


def test_parameters_that_change_before_backward():
    plain = output({}, CHANGED)
    assert "trains" in plain and "modified by an inplace operation" in plain
    assert output(koila_environment("rescue", 3), CHANGED) == plain
