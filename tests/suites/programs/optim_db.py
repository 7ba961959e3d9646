"""Every optimizer of torch's own database, with each of its inputs, over some steps of a small net."""

import copy

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

CASES = {}
for info in optim_db:
    for inputs in info.optim_inputs_func(device="cpu"):
        for flag in (None, "foreach", "fused") if not info.only_supports_sparse_grads else (None,):
            if flag is None or flag in info.supported_impls and (flag != "fused" or "cpu" in getattr(info, "supports_fused_on", ("cpu",))):
                CASES[f"{info.optim_cls.__name__} {inputs.desc} {flag or 'default'}"] = info, inputs, flag


def model(sparse, width=7):
    if sparse:
        return torch.nn.Embedding(11, width, sparse=True)
    return torch.nn.Sequential(torch.nn.Linear(width, 12), torch.nn.GELU(), torch.nn.LayerNorm(12), torch.nn.Linear(12, 3))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("closure", [False, True])
def test_steps(name, closure):
    info, inputs, flag = CASES[name]
    net = model(info.only_supports_sparse_grads)
    options = copy.deepcopy(inputs.kwargs)
    if flag:
        options[flag] = True
    # Muon is for matrices alone.
    parameters = [p for p in net.parameters() if p.dim() == 2] if info.optim_cls.__name__ == "Muon" else list(net.parameters())
    optimizer = info.optim_cls(parameters, **options)
    for _ in range(4):
        if info.only_supports_sparse_grads:
            x, target = torch.randint(0, 11, (6,)), torch.randn(6, 7)
        else:
            x, target = torch.randn(6, 7), torch.randn(6, 3)

        def loss():
            optimizer.zero_grad()
            value = torch.nn.functional.mse_loss(net(x), target)
            value.backward()
            return value
        if closure or info.step_requires_closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
