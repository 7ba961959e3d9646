"""A training task as a user would write it, small, and the record that a run of it leaves behind.

Tasks know nothing of koila. A subclass says what makes it different from the plainest loop there is; `@family` registers it.
"""

import numpy
import torch

FAMILIES = {}


def family(cls):
    """Registers a task class under its snake-case name."""
    name = "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("_")
    assert name not in FAMILIES, name
    cls.name = name
    FAMILIES[name] = cls
    return cls


class Task:
    name = None
    rows = 11  # a prime: of the micro-batches only 1 divides it
    budget_rows = 64  # rows where memory is measured: activations must outweigh parameters about thirty times
    # Bytes a row that the program itself keeps, at full batch, beside the batch and while the step runs: copies of the batch, outputs that
    # it reads. No micro-batching can do without them.
    held_per_row = 0
    steps = 5
    tolerance = 1e-5
    tolerance_in_double = None  # where it is not a millionth of the one above: a library turns to single precision within
    # True: koila has to rescue it. False: it may as well hand on the plain error, with the plain state.
    splits = True
    # False: what the step was made from is gone when its backward pass runs out.
    rescued_in_backward = True
    # False where permuting the rows changes the result (order or position of a row has a meaning).
    symmetric = True
    learning_rate = {"sgd": 0.05, "adamw": 1e-3}
    # What to import once, before the process forks for a run: "module" or "module:function to call".
    imports = ()

    def model(self):
        raise NotImplementedError

    def data(self, rows):
        """One batch, drawn from the global generator; tensors whose batch dimension is 0 unless `permuted` says otherwise."""
        raise NotImplementedError

    def permuted(self, data, order):
        return tuple(t[order] for t in data)

    def loss(self, model, *data):
        raise NotImplementedError

    def optimizer(self, model, name):
        parameters = [p for p in model.parameters() if p.requires_grad]
        if name == "sgd":
            return torch.optim.SGD(parameters, lr=self.learning_rate["sgd"], momentum=0.9)
        # The default eps of 1e-8 turns the rounding noise of a gradient that is zero by nature (a key's bias) into a full update.
        return torch.optim.AdamW(parameters, lr=self.learning_rate["adamw"], eps=1e-4)

    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)

    def finish(self, model, record):
        """After the last step."""


class Record:
    """What a run produced, by name, as NumPy arrays: they are no tensors, so they do not count against the budget under test."""

    def __init__(self):
        self.arrays = {}
        self.at_step = 0

    def value(self, name, value):
        self.arrays[f"step{self.at_step}/{name}"] = copied(value)

    def gradients(self, model, name="gradient"):
        for key, parameter in model.named_parameters():
            self.arrays[f"step{self.at_step}/{name}/{key}"] = copied(parameter.grad)

    def state(self, model, optimizer):
        """Parameters, gradients, buffers, optimizer state, and the generator."""
        for key, parameter in model.named_parameters():
            self.arrays[f"final/parameter/{key}"] = copied(parameter)
            self.arrays[f"final/gradient/{key}"] = copied(parameter.grad)
        for key, buffer in model.named_buffers():
            self.arrays[f"final/buffer/{key}"] = copied(buffer)
        names = {id(p): key for key, p in model.named_parameters()}
        for parameter, state in optimizer.state.items():
            for slot, value in state.items():
                self.arrays[f"final/optimizer/{slot}/{names.get(id(parameter), '?')}"] = copied(value)
        self.arrays["final/generator"] = copied(torch.get_rng_state())


def copied(value):
    """A NumPy copy of a tensor or number; None stays None."""
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        return numpy.asarray(value)
    value = value.detach()
    if value.is_cuda:
        value = value.cpu()
    if value.dtype == torch.bfloat16:
        bits = value.contiguous().view(torch.int16).numpy().astype(numpy.int32)
        return (bits << 16).view(numpy.float32)
    return value.numpy().copy()
