"""Metrics that have gradients, used as losses."""

import inspect

import pytest
import torch
import torchmetrics.functional as functional
import torchmetrics.functional.audio as audio
import torchmetrics.functional.image as image

ROWS = 6


def of(module):
    return {f"{module.__name__.split('.')[-1]}.{name}": f for name, f in vars(module).items() if inspect.isfunction(f) and not name.startswith("_")}


FUNCTIONS = of(functional) | of(image) | of(audio)
SHAPES = {"vector": (ROWS,), "matrix": (ROWS, 5), "image": (ROWS, 3, 32, 32), "sound": (ROWS, 2, 200)}
MORE = {"data_range": 1.0, "p": 2, "fs": 16000, "metric_func": audio.scale_invariant_signal_noise_ratio, "num_outputs": 5, "task": "multiclass", "num_classes": 5}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_metric(name, shape):
    function = FUNCTIONS[name]
    wanted = list(inspect.signature(function).parameters.values())
    given = {p.name: MORE[p.name] for p in wanted[2:] if p.default is inspect.Parameter.empty and p.name in MORE}
    torch.manual_seed(1)
    sizes = SHAPES[shape]
    width = sizes[-1] if len(sizes) > 1 else 1
    net = torch.nn.Linear(width, width)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(2):
        made = net(torch.rand(*sizes) if len(sizes) > 1 else torch.rand(ROWS, 1)).sigmoid().view(sizes)
        result = function(made, torch.rand(sizes), **given) if len(wanted) > 1 else function(made)
        while isinstance(result, (tuple, list)):
            result = result[0]
        if not isinstance(result, torch.Tensor) or not result.requires_grad:
            pytest.skip("no gradient")
        optimizer.zero_grad()
        result.mean().backward()
        optimizer.step()
