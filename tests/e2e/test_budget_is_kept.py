"""Whatever koila does about a step that cannot be split, the budget holds; and what is kept outside is kept in few pieces of work."""

import pickle
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy
import pytest

from harness import ROOT, clean_environment, koila_environment

PROGRAM = textwrap.dedent("""
    import os, pickle, sys
    import torch
    import torch._dynamo
    import torch.nn as nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
    sys.path.append(sys.argv[1])
    from koila_abi import Koila

    ROWS, STEPS, WIDTH = 64, 20, 32

    class Net(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.layer = getattr(nn, kind)(WIDTH, WIDTH, bidirectional=True, batch_first=True)
            self.last = nn.Linear(2 * WIDTH, 5)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            hidden, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
            return self.last(hidden.mean(1))

    def run(kind, budget):
        torch.manual_seed(0)
        net, koila = Net(kind).double(), Koila()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        koila.limit(budget)
        koila.reset_peak()
        found = {"error": "", "arrays": []}
        try:
            for _ in range(2):
                x, y, lengths = torch.randn(ROWS, STEPS, WIDTH, dtype=torch.double), torch.randint(5, (ROWS,)), torch.randint(1, STEPS, (ROWS,))
                lengths[0] = STEPS
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x, lengths), y)
                loss.backward()
                optimizer.step()
                found["arrays"] += [loss.detach().numpy().copy(), *(p.grad.numpy().copy() for p in net.parameters())]
        except torch.OutOfMemoryError as error:
            found["error"] = str(error).split("\\n")[0]
        found["peak"] = koila.peak()
        koila.limit(0)
        report = koila.report()
        found["passes"] = report["regions_total"]["runs"]
        found["reasons"] = [refusal["reason"] for refusal in report["refusals"]]
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

    found = {}
    for kind in ("LSTM", "GRU", "RNN"):
        found[kind, 1] = whole = in_a_child(kind, 0)
        for share in (0.9, 0.75, 0.6, 0.5):
            found[kind, share] = in_a_child(kind, int(share * whole["peak"]))
    with open(sys.argv[2], "wb") as file:
        pickle.dump(found, file)
""")


@pytest.mark.parametrize("ladder", ["0,1,2", "0,1"])
def test_packed_layers(ladder):
    """They are run whole and served from outside. Taken apart, each of their steps was split by itself: thousands of passes."""
    with tempfile.TemporaryDirectory(prefix="koila-e2e-") as folder:
        out = Path(folder, "out")
        subprocess.run([sys.executable, "-c", PROGRAM, ROOT / "scripts" / "lib", out], check=True, timeout=240,
                       env=clean_environment(koila_environment("rescue", KOILA_LADDER=ladder, KOILA_LOG="off")))
        found = pickle.loads(out.read_bytes())
    for (kind, share), actual in found.items():
        whole, about = found[kind, 1], f"{kind} at {share} of plain's peak, ladder {ladder}: {actual['error']} {actual['reasons']}"
        assert actual["peak"] <= int(share * whole["peak"]), about
        assert actual["passes"] < 300, f"{about}: {actual['passes']} passes"
        if actual["error"]:
            assert ladder == "0,1" and actual["reasons"], about
            continue
        assert all(numpy.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(whole["arrays"], actual["arrays"], strict=True)), about
