"""Runs benchmark workloads on request: a line `NAME REPETITIONS` on stdin, a line of JSON `[seconds, peak bytes, bytes alive]` on stdout (null
without koila). `budget BYTES` limits what follows, and `report 0` asks for koila's report.

Two of these run side by side, one plain and one under koila, and bench.py asks them in turn, so that whatever else the machine does
falls on both alike.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from koila_abi import Koila

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import char_gpt  # noqa: E402
import digits_cnn  # noqa: E402
import text_lstm  # noqa: E402

torch.set_num_threads(1)
WORKLOADS = {}


def workload(name):
    """Registers a function that prepares, and returns a function that does the work once."""
    def register(prepare):
        WORKLOADS[name] = prepare
        return prepare
    return register


# ---- what interception costs -------------------------------------------------------------------------------------------------

CHAIN = 1000


@workload("add")
def add():
    x = torch.zeros(4)

    def run():
        y = x
        with torch.no_grad():
            for _ in range(CHAIN):
                y = y + 1.0
    return run


@workload("add_inplace")
def add_inplace():
    x = torch.zeros(4)

    def run():
        with torch.no_grad():
            for _ in range(CHAIN):
                x.add_(1.0)
    return run


@workload("view")
def view():
    x = torch.zeros(4, 6)

    def run():
        for _ in range(CHAIN // 2):
            x.view(24).view(6, 4)
    return run


@workload("linear")
def linear():
    w, b, x = torch.randn(8, 8), torch.randn(8), torch.randn(4, 8)

    def run():
        y = x
        with torch.no_grad():
            for _ in range(CHAIN):
                y = F.linear(y, w, b)
    return run


@workload("grad")
def grad():
    w = torch.ones(4, requires_grad=True)

    def run():
        y = w
        for _ in range(CHAIN):
            y = y * w
        y.sum().backward()
        w.grad = None
    return run


# ---- training steps ----------------------------------------------------------------------------------------------------------


def gpt(rows, **shape):
    torch.manual_seed(0)
    model = char_gpt.Gpt(96, 64, **shape)
    tokens = torch.randint(96, (rows, 65))
    return model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), lambda m, x, y: m(x, y)[1], 1


def cnn(rows):
    torch.manual_seed(0)
    return digits_cnn.Cnn(), (torch.rand(rows, 1, 8, 8), torch.randint(10, (rows,))), lambda m, x, y: F.cross_entropy(m(x), y), 1


def mlp(rows):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256),
              torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    data = torch.rand(rows, 64), torch.randint(10, (rows,))
    return torch.nn.Sequential(*layers), data, lambda m, x, y: F.cross_entropy(m(x), y), 1


def tiny_mlp(rows):
    """Twenty layers of 32: operators so small that what is done about them shows."""
    torch.manual_seed(0)
    layers = [layer for _ in range(20) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), (torch.rand(rows, 32), torch.rand(rows, 32)), lambda m, x, y: F.mse_loss(m(x), y), 1


def transformer(rows):
    """Two layers of 64 over 32 positions, with dropout as they come."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(96, 64), torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(64, 96))
    tokens = torch.randint(96, (rows, 33))
    return model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()), 1


def lstm(rows):
    torch.manual_seed(0)
    return text_lstm.Reader(), (torch.randint(128, (rows, 64)), torch.randint(8, (rows,))), lambda m, x, y: F.cross_entropy(m(x), y), 1


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        self.conv2 = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(width)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(out)) + x)


def resnet(rows):
    """Eight residual blocks with batch norm, as in a ResNet-18."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU()]
    for width in (16, 32, 64):
        layers += [Block(width), Block(width)]
        if width < 64:
            layers += [torch.nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), torch.nn.BatchNorm2d(2 * width), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*layers), (torch.rand(rows, 3, 32, 32), torch.randint(10, (rows,))), lambda m, x, y: F.cross_entropy(m(x), y), 1


def clip_loss(a, b):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = a @ b.t() / 0.07
    target = torch.arange(len(a))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def clip(rows):
    """A convolutional tower and one of attention."""
    torch.manual_seed(0)
    image = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, stride=2, padding=1), torch.nn.GELU(), torch.nn.Conv2d(32, 64, 3, stride=2, padding=1), torch.nn.GELU(),
                                torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.GELU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(256, 64))
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    text = torch.nn.Sequential(torch.nn.Embedding(100, 64), torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    model = torch.nn.ModuleDict({"image": image, "text": text})
    return model, (torch.rand(rows, 3, 32, 32), torch.randint(100, (rows, 24))), lambda m, x, y: clip_loss(m["image"](x), m["text"](y).mean(1)), 1


def cached_step(micro_batch):
    """GradCache, by hand: the embeddings without a graph, the loss's gradient for them, and each micro-batch again with it."""
    def prepare(model, data, loss_of, _):
        optimizer = torch.optim.AdamW(model.parameters())
        images, texts = (t.split(micro_batch) for t in data)

        def embed(x, y):
            return model["image"](x), model["text"](y).mean(1)

        def run():
            optimizer.zero_grad()
            with torch.no_grad():
                a, b = (torch.cat(parts).requires_grad_() for parts in zip(*(embed(x, y) for x, y in zip(images, texts))))
            clip_loss(a, b).backward()
            for x, y, da, db in zip(images, texts, a.grad.split(micro_batch), b.grad.split(micro_batch)):
                torch.autograd.backward(embed(x, y), (da, db))
            optimizer.step()
        return run
    return prepare


def plain_step(model, data, loss_of, _, optimizer=torch.optim.AdamW):
    optimizer = optimizer(model.parameters())

    def run():
        optimizer.zero_grad()
        loss = loss_of(model, *data)
        loss.backward()
        optimizer.step()
    return run


def accumulated_step(micro_batch):
    """The loop that people write by hand. Rows are alike here, so that weighing the mean by rows is exact."""
    def prepare(model, data, loss_of, _):
        optimizer = torch.optim.AdamW(model.parameters())
        rows = len(data[0])

        def run():
            optimizer.zero_grad()
            for part in zip(*(t.split(micro_batch) for t in data)):
                loss = loss_of(model, *part) * (len(part[0]) / rows)
                loss.backward()
            optimizer.step()
        return run
    return prepare


def failing_step(model, data, loss_of, _):
    """As far as an ordinary step comes until memory runs out."""
    run = plain_step(model, data, loss_of, _)

    def attempt():
        try:
            run()
        except torch.OutOfMemoryError:
            pass
    return attempt


MODELS = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "lstm": lstm, "resnet": resnet, "clip": clip}


def step(name):
    """`step:gpt:64` is an ordinary step of 64 rows, `step:gpt:64:8` the loop by hand with micro-batches of 8, `cached:clip:64:8` GradCache's way,
    `failing:gpt:64` an ordinary step that may run out of memory, `small_gpt`, `tiny_mlp` and `transformer` fixed ones."""
    if name == "small_gpt":
        return plain_step(*gpt(8, width=64, layers=2))
    if name == "tiny_mlp":
        return plain_step(*tiny_mlp(8), optimizer=partial(torch.optim.SGD, lr=0.01))
    if name == "transformer":
        return plain_step(*transformer(4))
    parts = name.split(":")
    if parts[0] == "cached":
        return cached_step(int(parts[3]))(*MODELS[parts[1]](int(parts[2])))
    if parts[0] == "failing":
        return failing_step(*MODELS[parts[1]](int(parts[2])))
    if parts[0] != "step":
        return WORKLOADS[name]()
    prepare = accumulated_step(int(parts[3])) if len(parts) > 3 else plain_step
    return prepare(*MODELS[parts[1]](int(parts[2])))


def main():
    koila = Koila()
    name = run = None
    for line in sys.stdin:
        wanted, repetitions = line.split()
        if wanted == "budget":
            print(json.dumps(koila.limit(int(repetitions))), flush=True)
            continue
        if wanted == "report":
            print(json.dumps(koila.report()), flush=True)
            continue
        if wanted != name:
            run = None  # one workload's memory at a time
            name, run = wanted, step(wanted)
            for _ in range(3):
                run()
        koila.reset_peak()
        began = time.perf_counter()
        for _ in range(int(repetitions)):
            run()
        print(json.dumps([time.perf_counter() - began, koila.peak(), koila.live()]), flush=True)


if __name__ == "__main__":
    main()
