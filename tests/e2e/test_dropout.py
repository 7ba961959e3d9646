"""Random draws: other ones than the plain run's, from the same distribution, and the same in the forward and the backward pass.

A network without nonlinearities or biases is linear in each of its matrices, so the loss equals the product of every matrix with its own gradient,
whatever the masks were. It does not when the gradient was computed with other masks than the loss.
"""

import json
import subprocess
import sys
import textwrap

import pytest

from harness import HERE, clean_environment, koila_environment
from selection import only

SCRIPT = textwrap.dedent("""
    import json, sys
    import torch
    from torch.utils.checkpoint import checkpoint
    how, rows = sys.argv[1], 512
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(48, 48, bias=False) for _ in range(4))
    table = torch.nn.Embedding(100, 48)

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (ctx.saved_tensors[0] != 0)  # what it was given: the mask is in it

    def block(layer):
        def run(x):
            x = torch.nn.functional.dropout(layer(x) * 1.0, 0.5)
            return Same.apply(x) if how == "function" else x * 1.0
        return run

    off = []
    try:
        for step in range(4):
            layers.zero_grad()
            x = table(torch.randint(100, (rows,)))
            for layer in layers:
                x = checkpoint(block(layer), x, use_reentrant=how == "reentrant") if how in ("reentrant", "checkpoint") else block(layer)(x)
            loss = x.square().sum()  # of the second degree
            loss.backward()
            for layer in layers:
                off.append(abs((layer.weight * layer.weight.grad).sum().item() / (2 * loss.item()) - 1))
        outcome = "ok"
    except torch.OutOfMemoryError:
        outcome = "oom"
    print(json.dumps({"outcome": outcome, "off": off}))
""")


def run(how, environment):
    out = subprocess.run([sys.executable, "-c", SCRIPT, how], env=clean_environment(environment), capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


@pytest.mark.parametrize("how", only(["plain", "checkpoint", "function"], ["plain", "reentrant", "checkpoint", "function"]))
@pytest.mark.parametrize("limit", only(["3", "1200KiB"], ["3", "100", "900KiB", "1000KiB", "1200KiB", "1400KiB", "1600KiB", "2000KiB"]))
def test_one_set_of_masks(how, limit):
    if limit.endswith("KiB"):
        found = run(how, {**koila_environment("rescue"), "KOILA_CPU_MEMORY": limit})
    else:
        found = run(how, koila_environment("rescue", int(limit)))
        assert found["outcome"] == "ok"
    assert all(off < 1e-4 for off in found["off"]), found


def test_that_other_masks_are_seen():
    """The test above is worth something."""
    script = SCRIPT.replace("use_reentrant=how == \"reentrant\"", "use_reentrant=True, preserve_rng_state=False")
    out = subprocess.run([sys.executable, "-c", script, "reentrant"], env=clean_environment({}), capture_output=True, text=True, check=True)
    assert max(json.loads(out.stdout)["off"]) > 1e-2


DRAWS = textwrap.dedent("""
    import torch
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.ones(64))
    for step in range(2):
        x = torch.ones(600, 64) * w
        x = torch.nn.functional.dropout(x * 1.0, 0.25) * 1.0
        (x.sum() * 0).backward()
        rows = x.detach()
        assert rows.unique().sub(torch.tensor([0, 1 / 0.75])).abs().max() < 1e-6, rows.unique()
        assert abs((rows == 0).float().mean().item() - 0.25) < 0.02
        assert len(rows.unique(dim=0)) == 600, "micro-batches share their masks"
    torch.manual_seed(0)
    again = torch.nn.functional.dropout(torch.ones(600, 64) * w, 0.25)
    other = torch.nn.functional.dropout(torch.ones(600, 64) * w, 0.25)
    torch.manual_seed(0)
    assert torch.equal(again, torch.nn.functional.dropout(torch.ones(600, 64) * w, 0.25)), "a seed gives other draws the second time"
    assert not torch.equal(again, other), "the same draws without a seed"
""")


@pytest.mark.parametrize("rows", only([7], [1, 7, 100]))
def test_distribution(rows):
    subprocess.run([sys.executable, "-c", DRAWS], env=clean_environment(koila_environment("rescue", rows)), check=True, timeout=120)


@pytest.mark.parametrize("limit", [{}, {"KOILA_MICROBATCH": "7"}, {"KOILA_CPU_MEMORY": "9MiB"}, {"KOILA_CPU_MEMORY": "6MiB"}, {"KOILA_CPU_MEMORY": "4MiB"}], ids=str)
def test_a_gradient_that_is_differentiated_has_the_masks_of_the_forward_pass(limit):
    environment = clean_environment(koila_environment("rescue", KOILA_LADDER="0,1", OMP_NUM_THREADS="1", **limit))
    ran = subprocess.run([sys.executable, HERE / "twice_with_dropout.py"], env=environment, check=True, timeout=200, capture_output=True, text=True)
    assert float(ran.stdout) < 1e-13
    assert ("rescued" in ran.stderr) == ("KOILA_CPU_MEMORY" in limit), ran.stderr
