"""Steps with torch.ops.koila.lazy, each beside the same without a name or a budget, for a process with koila preloaded: python lazy_steps.py SCENARIO.

A scenario compares for itself; what it prints is one line of JSON: how often memory ran out, and the regions.
"""

import json
import sys
import threading
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

MIB = 1 << 20
ROWS, IN, WIDTH = 512, 16, 1024  # what a layer computes: two MiB
lazy = torch.ops.koila.lazy


class Net:
    def __init__(self, inside=IN):
        self.parameters = [torch.randn(size).mul_(0.05).requires_grad_() for size in [(WIDTH, inside), (64, WIDTH), (WIDTH, 64), (10, WIDTH)]]

    def __call__(self, x):
        for p in self.parameters[:-1]:
            x = torch.tanh(F.linear(x, p))
        return F.linear(x, self.parameters[-1])

    def step(self, x, y):
        F.cross_entropy(self(x), y).backward()
        found = [p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        return found


def batch(rows=ROWS):
    return torch.randn(rows, IN), torch.randint(10, (rows,))


def same(expected, found, tolerance=1e-5):
    expected, found = ([expected], [found]) if isinstance(expected, torch.Tensor) else (expected, found)
    assert len(expected) == len(found)
    for a, b in zip(expected, found):
        assert a.shape == b.shape and (a - b).abs().max() <= tolerance * a.abs().max()


def limit(mib):
    """What the tensors that are there have, and so much more."""
    koila.limit(koila.live() + mib * MIB)


def twice():
    net, (x, y) = Net(), batch()
    expected = net.step(x, y)
    limit(5)
    assert lazy(lazy(x, 1)) is x  # the last name holds
    h = torch.tanh(F.linear(lazy(x), net.parameters[0]))
    assert lazy(h, 1) is h and torch.ops.koila.placement(h) == "Shard(0)"
    lazy(x, 1)
    same(expected, net.step(x, y))


def evaluation():
    """Batches without gradients, of which nothing tells where one step ends and the next begins; then training, with what the next batch is named early."""
    net = Net()
    batches = [batch() for _ in range(6)]
    with torch.no_grad():
        expected = [net(x) for x, _ in batches]
    gradients = [net.step(*b) for b in batches]
    limit(4)
    with torch.no_grad():
        same(expected, [net(lazy(x)).clone() for x, _ in batches])
    lazy(batches[0][0])
    for i, b in enumerate(batches):
        if i + 1 < len(batches):
            lazy(batches[i + 1][0])
        same(gradients[i], net.step(*b))


def unused():
    """A name that nobody reads: of other rows, of a tensor that is gone, and all there is."""
    net, (x, y) = Net(), batch()
    expected = net.step(x, y)
    koila.limit(koila.live() + 100 * MIB)
    other = lazy(torch.randn(7, 3))
    lazy(torch.randn(9, 3))
    same(expected, net.step(x, y), tolerance=0)
    limit(5)
    same(expected, net.step(lazy(x), y))
    del other


def gradient_of_the_input():
    net, (x, y) = Net(), batch()
    x.requires_grad_()
    expected = [*net.step(x, y), x.grad]
    x.grad = None
    limit(5)
    same(expected, [*net.step(lazy(x), y), x.grad])


def result_of_the_step():
    """A small network in front, which runs whole."""
    net, (x, y) = Net(), batch()
    front = torch.randn(IN, IN, requires_grad=True)
    expected = [*net.step(torch.tanh(x @ front), y), front.grad]
    front.grad = None
    limit(5)
    h = torch.tanh(x @ front)
    assert lazy(h) is h and h.grad_fn is not None
    same(expected, [*net.step(h, y), front.grad])


def two_models_of_one_batch():
    """Each is of a kind of its own; the second is larger."""
    small, large, (x, y) = Net(), Net(), batch()
    large.parameters[0] = torch.randn(4 * WIDTH, IN).mul_(0.05).requires_grad_()
    large.parameters[1] = torch.randn(64, 4 * WIDTH).mul_(0.05).requires_grad_()
    expected = [small.step(x, y), large.step(x, y)]
    limit(8)
    for _ in range(3):
        same(expected[0], small.step(lazy(x), y))
        same(expected[1], large.step(lazy(x), y))


def two_inputs_at_two_times():
    """The second is named when the step is under way, and meets a network of its own."""
    left, right, (a, y), (b, _) = Net(), Net(), batch(), batch()

    def step(name):
        la = left(name(a))
        F.cross_entropy(la * right(name(b)), y).backward()
        found = [p.grad for p in left.parameters + right.parameters]
        for p in left.parameters + right.parameters:
            p.grad = None
        return found

    expected = step(lambda t: t)
    limit(6)
    for _ in range(3):
        same(expected, step(lazy))


def other_threads():
    net, (x, y) = Net(), batch()
    expected = net.step(x, y)
    koila.limit(koila.live() + 100 * MIB)
    found = []
    thread = threading.Thread(target=lambda: found.extend(net.step(lazy(x), y) for _ in range(2)))
    thread.start()
    thread.join()
    assert len(found) == 2
    for gradients in found:
        same(expected, gradients)


def errors():
    x = torch.randn(6, 4)
    for arguments, error, text in [((x, 2), IndexError, "dimension 2 of a tensor of shape [6, 4]; it is from -2 to 1"),
                                   ((torch.tensor(1.0),), ValueError, "has no dimensions"), ((x, 0, -1), ValueError, "micro_batch is -1; it is a number of rows")]:
        try:
            lazy(*arguments)
        except error as found:
            assert text in str(found), found
        else:
            raise AssertionError(text)


def not_for_koila():
    """What has no rows to koila comes back, and works."""
    koila.limit(koila.live() + 100 * MIB)
    x = torch.randn(6, 4)
    for other in [torch.empty(0, 4), torch.randn(1, 4), x.to_sparse(), torch.empty(3, 4, device="meta")]:
        assert lazy(other) is other
    same(x.sum(1), torch.vmap(lambda row: lazy(row).sum())(x), tolerance=0)
    same(2 * x, torch.func.grad(lambda t: (lazy(t) ** 2).sum())(x), tolerance=0)
    same(x * 2, torch.compile(lambda t: lazy(t) * 2, backend="eager", fullgraph=True)(x), tolerance=0)
    with torch.inference_mode():
        same(x + 1, lazy(x) + 1, tolerance=0)


def resized():
    """What was named is not what is read."""
    koila.limit(koila.live() + 100 * MIB)
    x = torch.randn(6, 4)
    lazy(x, 1)
    x.resize_(24)
    same(torch.exp(x.clone()), torch.exp(x), tolerance=0)


def by_hand():
    """No budget, and not a power of two."""
    net, (x, y) = Net(), batch()
    expected = net.step(x, y)
    for rows in (7, 300, 4096):
        same(expected, net.step(lazy(x, 0, rows), y))


def no_budget():
    net, (x, y) = Net(), batch()
    same(net.step(x, y), net.step(lazy(x), y), tolerance=0)


if __name__ == "__main__":
    koila = Koila()
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
    koila.limit(0)
    report = koila.report()
    print(json.dumps({"ran_out": len(report["oom_events"]), "regions": report["regions_total"]["count"], "micro_batch": report["micro_batch"], "notes": report["notes"]}))
