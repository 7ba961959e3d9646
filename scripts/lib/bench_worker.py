"""Runs benchmark workloads on request: a line `NAME REPETITIONS` on stdin, a line of JSON `[seconds, peak bytes or null]` on stdout.

Two of these run side by side, one plain and one under koila, and bench.py asks them in turn, so that whatever else the machine does
falls on both alike.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

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


def lstm(rows):
    torch.manual_seed(0)
    return text_lstm.Reader(), (torch.randint(128, (rows, 64)), torch.randint(8, (rows,))), lambda m, x, y: F.cross_entropy(m(x), y), 1


def plain_step(model, data, loss_of, _):
    optimizer = torch.optim.AdamW(model.parameters())

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


MODELS = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "lstm": lstm}


def step(name):
    """`step:gpt:64` is an ordinary step of 64 rows, `step:gpt:64:8` the loop by hand with micro-batches of 8, `small_gpt` a fixed one."""
    if name == "small_gpt":
        return plain_step(*gpt(8, width=64, layers=2))
    parts = name.split(":")
    if parts[0] != "step":
        return WORKLOADS[name]()
    prepare = accumulated_step(int(parts[3])) if len(parts) > 3 else plain_step
    return prepare(*MODELS[parts[1]](int(parts[2])))


class Peak:
    def __init__(self):
        library = ctypes.CDLL(None)
        self.library = library if hasattr(library, "koila_peak_bytes") else None
        if self.library:
            self.library.koila_peak_bytes.restype = ctypes.c_int64

    def reset(self):
        if self.library:
            self.library.koila_reset_peak(-1)

    def bytes(self):
        return self.library.koila_peak_bytes(-1) if self.library else None


def main():
    peak = Peak()
    name = run = None
    for line in sys.stdin:
        wanted, repetitions = line.split()
        if wanted != name:
            run = None  # one workload's memory at a time
            name, run = wanted, step(wanted)
            for _ in range(3):
                run()
        peak.reset()
        began = time.perf_counter()
        for _ in range(int(repetitions)):
            run()
        print(json.dumps([time.perf_counter() - began, peak.bytes()]), flush=True)


if __name__ == "__main__":
    main()
