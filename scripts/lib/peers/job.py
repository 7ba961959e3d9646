"""One training run as the ways (ways.py) see it, and what is measured of it: from hooks of the optimizer, so that a way's code is a user's own."""

import ctypes
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from figures import epoch_seconds, outcome_of  # noqa: E402
from koila_abi import Koila  # noqa: E402


class Done(Exception):
    """As many steps as were wanted."""


def in_numpy(tensors):
    """Copies outside of what the budget counts."""
    return [tensor.detach().numpy().copy() for tensor in tensors]


class Budget:
    """The budget on tensors' memory: koila's own account (KOILA_MODE=track throws and rescues nothing), or the pager's resident memory."""

    def __init__(self):
        self.koila = Koila()
        self.pager = None if self.koila.library or not hasattr(ctypes.CDLL(None), "pager_limit") else ctypes.CDLL(None)
        if self.pager:
            self.pager.pager_limit.argtypes, self.pager.pager_faults.restype = [ctypes.c_int64], ctypes.c_int64

    def limit(self, size):
        if self.pager:
            self.pager.pager_limit(size or 0)
        elif size:
            self.koila.limit(size)

    def facts(self):
        if self.pager:
            return {"faults": self.pager.pager_faults()}
        if not self.koila.library:
            return {}
        report = self.koila.report() or {}
        device = report.get("devices", {}).get("cpu", {})
        return {"peak": self.koila.peak(), "outside": device.get("outside_peak_bytes", 0)}


class Job:
    def __init__(self, work, rows=None, dtype="float32", exact=False, micro=None, epochs=6, seconds=2.5, batches=1):
        """exact: the optimizer moves nothing, and gradients of `batches` steps and statistics of the first are kept; micro: rows of a micro-batch, for ways that want them
        named. Else one step, and then as many epochs as fit into `seconds`, `epochs` at most."""
        torch.set_num_threads(1)
        torch.set_default_dtype(getattr(torch, dtype))
        self.work, self.rows, self.exact, self.micro = work, rows or work.rows, exact, micro
        self.epochs, self.seconds, self.batches = epochs, seconds, batches
        self.trainer, self.measured_rows, self.tuning = None, self.rows, False
        self.loss, self.budget = work.loss, Budget()
        self.failures, self.state = 0, None
        torch.manual_seed(0)
        self.dataset = work.data(int(self.rows * work.epoch))
        self.build()

    def build(self):
        """The user's `model, optimizer = ...`, seeded."""
        torch.manual_seed(1)
        self.model = self.work.model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0 if self.exact else 1e-4)
        self.optimizer.register_step_post_hook(self.after_step)
        self.before = self.moving_state()
        self.restart()
        return self.model, self.optimizer

    @property
    def blocks(self):
        return self.work.blocks(self.model)

    @property
    def towers(self):
        return self.work.towers(self.model)

    def loader(self, rows):
        """Batches of `rows`, the last of an epoch with what is left; epoch after epoch."""
        while True:
            yield from zip(*(tensor.split(rows) for tensor in self.dataset))

    def tensor_dataset(self):
        """Twice over where it has but one batch: Lightning's finder gives up where a batch is the whole data set."""
        dataset = torch.utils.data.TensorDataset(*self.dataset)
        return torch.utils.data.ConcatDataset([dataset, dataset]) if len(dataset) == self.rows else dataset

    @property
    def batch(self):
        """Rows of a step: those that were asked for, or what the way made of them."""
        return self.trainer._train_batch_size if self.trainer else self.measured_rows

    @property
    def steps_of_an_epoch(self):
        return -(-len(self.dataset[0]) // self.batch)

    # -- what is measured ------------------------------------------------------------------------------------------------------

    def restart(self):
        """Training begins, or begins again: what was measured of an attempt before is dropped."""
        self.times, self.gradients, self.statistics = [], [], None

    def moving_state(self):
        return in_numpy(b for b in self.model.buffers() if b.is_floating_point()), torch.get_rng_state().numpy().copy()

    def failed(self):
        """Memory ran out: what state that leaves, the first time."""
        self.failures += 1
        if self.state is None:
            buffers, generator = self.moving_state()
            with_gradient = sum(p.grad is not None for p in self.model.parameters())
            self.state = {"gradients": with_gradient, "of": sum(1 for _ in self.model.parameters()), "steps": len(self.times),
                          "statistics": any((a != b).any() for a, b in zip(buffers, self.before[0])), "generator": bool((generator != self.before[1]).any())}
        return True

    def after_step(self, *_):
        """Times are of the processor, for others use the machine too. Where a closure computes the gradients they are there by now, and not before the step; with a rate of zero nothing has moved."""
        self.times.append(time.process_time())
        if self.tuning:
            return
        if self.exact:
            self.gradients.append(in_numpy(p.grad if p.grad is not None else torch.zeros(0) for p in self.model.parameters()))
            if self.statistics is None:
                self.statistics = self.moving_state()[0]
            if len(self.gradients) == self.batches:
                raise Done
        elif len(self.times) > self.epochs * self.steps_of_an_epoch or self.times[-1] - self.times[0] > self.seconds:
            raise Done

    def run(self, way, budget=None):
        """A dictionary of what came out: `outcome` is ok, memory, or an error's text."""
        self.budget.limit(budget)
        torch.manual_seed(2)
        self.before = self.before[0], torch.get_rng_state().numpy().copy()
        began = time.process_time()
        outcome = "ok"
        try:
            way(self)
        except Done:
            pass
        except Exception as error:
            outcome = outcome_of(error)
            if outcome == "memory":
                self.failed()
        result = {"outcome": outcome, "seconds": time.process_time() - began, "steps": len(self.times), "failures": self.failures, "state": self.state, "batch": self.batch}
        if self.times:
            result |= {"until_first": self.times[0] - began, "epochs": epoch_seconds(self.times, self.steps_of_an_epoch)}
        return result | self.budget.facts()
