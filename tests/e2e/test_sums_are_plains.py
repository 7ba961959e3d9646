"""What is counted over the rows, and what follows from it, is the plain run's to the last bit: accuracies, loads of experts, errors of whole numbers. Programs compare these with 1.0, take their sign, and draw with them."""

import json
import subprocess
import sys
import textwrap

import pytest

from harness import clean_environment, koila_environment
from selection import only

PROGRAM = textwrap.dedent("""
    import json, sys, torch, torch.nn.functional as F

    dtype, rows = getattr(torch, sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    first, second = (torch.randn(*s, dtype=dtype, requires_grad=True) for s in ((32, 64), (64, 8)))
    bias = torch.zeros(8, dtype=dtype)
    said = []

    def whole(t):
        return t.to(dtype) if t.dtype == torch.bool else t.round().detach()

    for step in range(3):
        x = torch.randn(rows, 5, 32, dtype=dtype)
        h = (x @ first).tanh()
        z = h @ second + bias
        y = z.argmax(-1)
        right = z.argmax(-1) == y
        hot = F.one_hot(y, 8).to(dtype)
        accuracy = right.to(dtype).mean()
        load = hot.mean((0, 1))
        with torch.no_grad():
            bias += 0.01 * torch.sign(load.mean() - load)
        told = {
            "accuracy": accuracy, "percent": 100 * right.to(dtype).mean(), "of len": right.sum() / right.numel(), "as double": right.to(dtype).mean().double() * 100 / 7,
            "load": load, "load by sums": hot.sum((0, 1)) / hot.sum(), "balance": 8 * (load * 3).sum(), "ones": torch.ones_like(h).mean(), "kept dimension": hot.mean(0, keepdim=True).squeeze(0) / 3,
            "l1": F.l1_loss(whole(z), torch.zeros_like(z)), "mse": F.mse_loss(whole(z), torch.ones_like(z)), "of rows": whole(z).sum(-1).mean() + 1, "stacked": torch.stack([right.sum().to(dtype), whole(z).sum()]) / 49,
            "one of them": (whole(z).sum((0, 1)) / 13)[3], "infinite": (h * 0 + float("inf")).mean(), "error": 1 - accuracy, "root": torch.sqrt(1 - accuracy), "drawn": torch.bernoulli(accuracy.float().detach()),
        }
        loss = z.square().mean() + z.logsumexp(-1).mean()
        loss.backward()
        said.append({name: [v.hex() for v in t.detach().double().flatten().tolist()] for name, t in told.items()} | {"stops": accuracy.item() == 1.0, "bias": bias.tolist()})
        with torch.no_grad():
            for p in (first, second):
                p -= 0.01 * p.grad
                p.grad = None
    print(json.dumps(said))
""")


def said(environment, dtype, rows):
    done = subprocess.run([sys.executable, "-c", PROGRAM, dtype, str(rows)], env=clean_environment(environment), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("micro_batch", only(["3"], ["1", "3", "16"]))
@pytest.mark.parametrize("dtype, rows", [("float32", 49), ("float64", 49), ("float32", 36), ("bfloat16", 32)])
def test_to_the_last_bit(dtype, rows, micro_batch):
    environment = koila_environment("lazy", microbatch=micro_batch)
    for plain, found in zip(said({}, dtype, rows), said(environment, dtype, rows), strict=True):
        if dtype == "bfloat16":  # plain adds up whole numbers in single precision, and rounds what follows; the bits of a rounded mean are not promised
            plain, found = ({name: told[name] for name in ("accuracy", "stops", "ones", "error")} for told in (plain, found))
        assert found == plain
