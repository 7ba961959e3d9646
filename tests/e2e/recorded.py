"""Trains a small model, of which koila keeps a record, and comes to the end that it is told.

    python recorded.py END [STEPS]

END: a name in ENDS, or `forks`. A line "step N" follows each step. Every batch is of another size, and none fits into the budget: each step is rescued.
"""

import ctypes
import itertools
import json
import os
import random
import resource
import signal
import sys
import time

import torch

ENDS = {
    "exit": lambda: None,
    "error": lambda: 1 / 0,
    "_exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
WIDTH = 32


def train(steps, out, width=WIDTH):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())])
    for step in range(1, steps + 1) if steps else itertools.count(1):
        x = torch.randn(4096 + 8 * step, width)
        model(x).square().mean().backward()
        with torch.no_grad():  # by hand: PyTorch's optimizers take a second to import
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        os.write(out, f"step {step}\n".encode())


def fork(work):
    """A child that does this, and what it writes."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work(write)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(write)
    return pid, read


def killed_in(seconds):
    """A child that trains, killed so long after its first step: its number and how many steps it told of."""
    pid, out = fork(lambda write: train(0, write))
    text = os.read(out, 1 << 16)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while more := os.read(out, 1 << 16):
        text += more
    os.close(out)
    return pid, text.count(b"\n")


def forks(count):
    """Children that are killed, each at a moment of its own; the parent trains too, and leaves."""
    draw = random.Random(os.getpid())
    train(2, 2, WIDTH - 1)  # what is learned of these steps is of no use to the children's
    children = [killed_in(draw.uniform(0, 0.05)) for _ in range(count)]
    idle = os.fork()
    if idle == 0:
        torch.ones(1 << 10).sum()
        sys.exit()
    os.waitpid(idle, 0)
    print(json.dumps({"parent": os.getpid(), "children": children, "idle": idle}))


def without_room(places):
    """In a child each, a few steps where a record has no place: {name: exit status}. The keys are a TMPDIR, or `limit` and bytes."""
    ends = {}
    for name, place in places.items():
        def work(write, place=place):
            if isinstance(place, int):
                resource.setrlimit(resource.RLIMIT_FSIZE, (place, place))
            else:
                os.environ["TMPDIR"] = place
            train(10, write)
        pid, out = fork(work)
        text = b""
        while more := os.read(out, 1 << 16):
            text += more
        status = os.waitpid(pid, 0)[1]
        ends[name] = {"pid": pid, "status": status, "steps": text.count(b"\n")}
        os.close(out)
    print(json.dumps(ends))


def main():
    what, argument = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "3"
    if what == "forks":
        forks(int(argument))
    elif what == "without_room":
        without_room(json.loads(argument))
    else:
        train(int(argument), 1)
        ENDS[what]()


if __name__ == "__main__":
    main()
