"""The largest entry over the batch has its gradient, also where micro-batches of another size round its operand otherwise."""

import subprocess
import sys
import textwrap

import numpy
import pytest

from harness import ROOT, clean_environment, koila_environment
from selection import only

PROGRAM = textwrap.dedent("""
    import os, pickle, sys, numpy
    sys.path.append(sys.argv[1])
    import torch, torch.nn as nn
    from koila_abi import Koila

    koila, SEED = Koila(), 1

    def step(seed, number):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 10))
        x = torch.randn(8, 64)
        koila.limit(0, f"nth:{number}" if number else None)
        try:
            out = net(x)
            loss = getattr(out, sys.argv[2])(0).sum() if sys.argv[2].startswith("a") else getattr(out, sys.argv[2])()
            loss.backward()
        except torch.OutOfMemoryError:
            return None
        finally:
            koila.limit(0, None)
        return [t.detach().numpy() for t in (loss, *(p.grad for p in net.parameters()))]

    # Rows one by one go through other kernels than rows in pairs: an allocation of the backward pass fails, and halves them.
    # Each in a process of its own: what has been halved once stays so.
    def alone(number):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, pickle.dumps(step(SEED, number)))
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            run = pickle.loads(pipe.read())
        os.waitpid(child, 0)
        return run

    step(SEED, 0)  # the next of its kind begins in micro-batches
    numbers = range(90, 220, 12) if koila.library else [0]
    runs = [run for run in map(alone, numbers) if run is not None]
    numpy.savez(sys.argv[3], *[numpy.concatenate([t.flatten() for t in run]) for run in runs])
""")


def runs(environment, operator, path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, ROOT / "scripts" / "lib", operator, path], env=clean_environment(environment), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    with numpy.load(path) as found:
        return list(found.values())


@pytest.mark.parametrize("operator", only(["amax", "min"], ("amax", "amin", "max", "min")))
def test_the_gradient_of_the_largest(tmp_path, operator):
    plain, = runs({}, operator, tmp_path / "plain.npz")
    split = runs(koila_environment("rescue", 2, KOILA_LADDER="1"), operator, tmp_path / "split.npz")
    assert len(split) > 5
    for run in split:
        numpy.testing.assert_allclose(run, plain, rtol=1e-3, atol=1e-5)
