"""Trains on threads, and writes what came of it: `thread_steps.py NAME FILE`."""

import concurrent.futures
import queue
import sys
import threading

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 1024
STEPS = 3


class Work:
    """A model with an optimizer, and what its steps leave."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8)).double()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.batches = [(torch.randn(ROWS, 64, generator=generator, dtype=torch.float64), torch.randint(8, (ROWS,), generator=generator)) for _ in range(STEPS)]
        self.losses = []

    def step(self, number):
        x, y = self.batches[number]
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    def train(self):
        for number in range(STEPS):
            self.step(number)

    def result(self):
        return [loss.item() for loss in self.losses] + [entry for p in self.net.parameters() for entry in (p.sum().item(), p.grad.square().sum().item())]


def joined(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def on_main(work):
    work.train()


def on_a_thread(work):
    joined(work.train)


def after_a_look(work):
    """The first thread has run the model with gradients, and dropped what came out."""
    assert work.net(work.batches[0][0][:8]).shape == (8, 8)
    joined(work.train)


def made_there_too(work):
    """Nothing of torch but its import happens on the first thread."""
    joined(lambda: (work.__init__(1), work.train()))


def main_and_then_a_thread(work):
    for number in range(STEPS):
        joined(lambda number=number: work.step(number)) if number % 2 else work.step(number)


def a_pool(work):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for number in range(STEPS):
            pool.submit(work.step, number).result()


def of_a_thread_of_a_thread(work):
    joined(lambda: joined(work.train))


def beside_idle_threads(work):
    """What a progress bar, a logger and a prefetcher do."""
    over = threading.Event()
    batches = queue.Queue()

    def prefetch():
        while not over.wait(0.001):
            batches.put(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)) @ torch.ones(8, 8))

    threads = [threading.Thread(target=over.wait), threading.Thread(target=prefetch)]
    for thread in threads:
        thread.start()
    work.train()
    over.set()
    for thread in threads:
        thread.join()
    assert not batches.empty()


def read_by_main(work):
    """The thread leaves values of its last step behind."""
    left = []

    def last():
        work.train()
        left.append(F.cross_entropy(work.net(work.batches[0][0]), work.batches[0][1]))

    joined(last)
    work.losses.append(left[0].detach())


def forward_there_backward_here(work):
    for number in range(STEPS):
        x, y = work.batches[number]
        made = []
        work.optimizer.zero_grad()
        joined(lambda: made.append(F.cross_entropy(work.net(x), y)))
        made[0].backward()
        work.optimizer.step()
        work.losses.append(made[0].detach())


def two_at_once(work):
    other = Work(2)
    joined(work.train, other.train)
    work.losses += [torch.tensor(value, dtype=torch.float64) for value in other.result()]


def main_evaluates(work):
    """The first thread runs another model without gradients all the while."""
    over = threading.Event()
    other = Work(3)
    seen = []

    def evaluate():
        with torch.no_grad():
            while not over.is_set():
                seen.append(other.net(other.batches[0][0]).sum().item())

    def train():
        try:
            work.train()
        finally:  # a refused step ends it, too
            over.set()

    thread = threading.Thread(target=train)
    thread.start()
    evaluate()
    thread.join()
    assert len(set(seen)) <= 1, seen


if __name__ == "__main__":
    work = Work(1)
    globals()[sys.argv[1]](work)
    numpy.save(sys.argv[2], numpy.array(work.result()))
