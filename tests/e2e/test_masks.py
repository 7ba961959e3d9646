"""What a mask over the batch picks is split by rows, as many entries as each row has: masked language models, in their usual ways."""

import json
import subprocess
import sys
import textwrap

import numpy
import pytest

from harness import clean_environment, koila_environment
from selection import only

SCRIPT = textwrap.dedent("""
    import sys
    import torch, torch.nn as nn, torch.nn.functional as F

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    B, T, D, V = 9, 6, 8, 20

    def loss_of(model, way, ids, mask):
        embedding, encoder, output = model
        labels = torch.where(mask, ids, -100)
        h = encoder(embedding(ids))
        if way == "picked":
            chosen = labels != -100
            return F.cross_entropy(output(h[chosen]), labels[chosen])
        if way == "flattened":
            chosen = (labels != -100).view(-1)
            return F.cross_entropy(output(h.view(-1, D)[chosen]).view(-1, V), labels.view(-1)[chosen])
        if way == "mean":
            z = output(h)[mask]
            return z.square().mean() + z.relu().sum(-1).mean() + z.softmax(-1).amax(-1).sum()
        if way == "selected":
            return torch.masked_select(output(h), mask[:, :, None].expand(-1, -1, V)).exp().mean()
        if way == "computed":  # the mask comes from the model
            chosen = h[..., 0] > 0
            return F.mse_loss(output(h[chosen]), output(h[chosen]).detach() * 0.5)
        if way in ("placed", "placed_whole", "placed_flat"):  # what is made of images, into the text
            text = embedding(ids)
            if way == "placed":
                mask = torch.arange(T).expand(B, T) % 3 == 1
                images = encoder(text + 1)[:, :int(mask[0].sum())].reshape(-1, D)
            else:
                images = torch.linspace(-1, 1, int(mask.sum()) * D).view(-1, D)
                images = images * output.weight[:1] if way == "placed_whole" else images.view(-1)
            return F.cross_entropy(output(encoder(text.masked_scatter(mask[:, :, None].expand_as(text), images))).flatten(0, 1), ids.flatten())
        if way == "two":
            return F.cross_entropy(output(h[mask]), ids[mask]) + output(h[~mask]).square().mean()

    for way in sys.argv[1:]:
        model = nn.ModuleList([nn.Embedding(V, D), nn.TransformerEncoderLayer(D, 2, 16, 0.0, batch_first=True), nn.Linear(D, V)])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(4):
            ids, mask = torch.randint(V, (B, T)), torch.rand(B, T) < 0.3
            mask[2] = False  # a row without any
            mask[0] = step != 2  # nor the first
            loss = loss_of(model, way, ids, mask)
            optimizer.zero_grad()
            loss.backward()
            print(way, repr(loss.item()), *(repr(p.grad.abs().sum().item()) for p in model.parameters()))
            optimizer.step()
""")
WAYS = ["picked", "flattened", "mean", "selected", "computed", "two", "placed", "placed_whole", "placed_flat"]


def run(environment):
    """Losses and gradients of every way, by name."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *WAYS], env=clean_environment(environment), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {way: numpy.array([line[1:] for line in lines if line[0] == way], float) for way in WAYS}


@pytest.fixture(scope="module")
def plain():
    return run({})


@pytest.mark.parametrize("rows", only([4], [1, 2, 4]))
def test_what_a_mask_picks_is_split(tmp_path, plain, rows):
    report = tmp_path / "report.json"
    found = run(koila_environment("rescue", rows, KOILA_REPORT=str(report)))
    for way in WAYS:
        numpy.testing.assert_allclose(found[way], plain[way], rtol=1e-11, atol=1e-13, err_msg=way)
    found = json.loads(report.read_text())
    assert found["regions_total"]["count"] == 4 * len(WAYS)
    assert found["full_batch_ops"] == []
