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


def output(environment):
    return subprocess.run([sys.executable, "-c", SCRIPT], env=clean_environment(environment), capture_output=True, text=True, check=True).stdout


def test_errors_are_the_programs_own():
    assert output(koila_environment("rescue", 3)) == output({})
