"""Programs for test_advice.py, unmodified training scripts but for what they keep: python advice_steps.py NAME."""

import sys

import torch

STEPS = 90
model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())])
cache = {}


class Trainer:
    def __init__(self):
        self.history = []

    def run(self):
        for loss, output in steps():
            self.history.append(output)


def steps(rows=256, optimizer=torch.optim.SGD, **options):
    optimizer = optimizer(model.parameters(), lr=0.01, **options)
    for _ in range(STEPS):
        output = model(torch.randn(rows, 64))
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss, output


def nothing():
    total, last = 0.0, []
    for loss, output in steps():
        total += loss.item()
        last = [*last[-3:], output.detach()]


def running_total():
    total = 0
    for loss, _ in steps():
        total += loss


def losses_in_a_list():
    losses = []
    for loss, _ in steps():
        losses.append(loss)


def outputs_in_a_list():
    outputs = []
    for _, output in steps():
        outputs.append(output)


def outputs_in_an_attribute():
    Trainer().run()


def cache_of_the_module():
    for number, (_, output) in enumerate(steps()):
        cache[number] = output.detach()


def watch(layer):
    kept = []

    def hook(module, inputs, output):
        kept.append(output)

    layer.register_forward_hook(hook)


def closure_of_a_hook():
    watch(model[2])
    for _ in steps():
        pass


def total_without_backward():
    validation = 0
    for _ in steps(rows=16):
        validation = validation + model(torch.randn(64, 64)).square().mean()


def kept_in_cpp():
    """Python has no object that holds them."""
    buffers = iter([[]])
    keep = [next(buffers)]
    hidden = iter(keep)
    del keep, buffers
    append = hidden.__reduce__()[1][0][0].append
    for _, output in steps():
        append(output.detach())


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
