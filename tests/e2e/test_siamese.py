"""A net that is run twice in a step, and has as many channels as the batch has rows: its running statistics look like a batch, and are none."""

import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy
import pytest

from harness import ROOT, clean_environment, koila_environment
from selection import only

PROGRAM = textwrap.dedent("""
    import os, pickle, sys
    import torch
    import torch._dynamo
    import torch.nn as nn
    sys.path.append(sys.argv[1])
    from koila_abi import Koila

    ROWS = 16

    def block(width, out):
        return [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]

    def run(share, peak=0):
        torch.manual_seed(0)
        net = nn.Sequential(*block(1, ROWS), *block(ROWS, 128), nn.MaxPool2d(4), *block(128, 128), *block(128, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                            nn.Linear(128, ROWS)).double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        koila = Koila()
        koila.limit(int(share * peak))
        koila.reset_peak()
        found = {"error": "", "arrays": []}
        try:
            for _ in range(2):
                a, b = (torch.randn(ROWS, 1, 8, 8, dtype=torch.double) for _ in range(2))
                optimizer.zero_grad()
                loss = (net(a) * net(b)).mean()
                loss.backward()
                optimizer.step()
                found["arrays"] += [loss.detach().numpy().copy(), *(p.grad.numpy().copy() for p in net.parameters())]
        except torch.OutOfMemoryError as error:
            found["error"] = str(error).split("\\n")[0]
        found["peak"] = koila.peak()
        koila.limit(0)
        found["arrays"] += [t.numpy().copy() for t in net.state_dict().values()]
        found["ladder"] = {event["rung"] for event in koila.report()["oom_events"]}
        return found

    def in_a_child(*arguments):
        read, write = os.pipe()
        if os.fork() == 0:
            with open(write, "wb") as file:
                pickle.dump(run(*arguments), file)
            os._exit(0)
        os.close(write)
        with open(read, "rb") as file:
            return pickle.load(file)

    whole = in_a_child(0)
    shares = [float(share) for share in sys.argv[3:]]
    with open(sys.argv[2], "wb") as file:
        pickle.dump((whole, {share: in_a_child(share, whole["peak"]) for share in shares}), file)
""")


def train(ladder, *shares):
    with tempfile.TemporaryDirectory(prefix="koila-e2e-") as folder:
        out = os.path.join(folder, "out")
        subprocess.run([sys.executable, "-c", PROGRAM, ROOT / "scripts" / "lib", out, *map(str, shares)], check=True, timeout=240,
                       env=clean_environment(koila_environment("rescue", KOILA_LADDER=ladder, KOILA_LOG="off")))
        return pickle.loads(Path(out).read_bytes())


def assert_exact(whole, actual, about):
    assert len(whole["arrays"]) == len(actual["arrays"]), about
    for expected, array in zip(whole["arrays"], actual["arrays"]):
        assert numpy.allclose(expected, array, rtol=1e-9, atol=1e-10), about


@pytest.mark.parametrize("ladder", only(["0,1,2"], ["0,1,2", "0,1"]))
def test_budgets(ladder):
    whole, shares = train(ladder, 0.95, 0.9, 0.85, 0.8, 0.75, 0.6, 0.5)
    for share, actual in shares.items():
        about = f"{share} of plain's peak, ladder {ladder}: {actual['error']}"
        assert actual["peak"] <= int(share * whole["peak"]), about
        if not actual["error"]:
            assert_exact(whole, actual, about)
        else:
            assert ladder == "0,1", about
    trained = {share for share, actual in shares.items() if not actual["error"]}
    assert trained >= {0.95, 0.9}, trained
    assert all("micro-batches" in shares[share]["ladder"] for share in trained)
