"""Memory that runs out where koila does not follow the program. Says how many errors the program got, on standard output.

    LD_PRELOAD=... KOILA_CPU_MEMORY=24MiB python failure_steps.py dispatch_mode
"""

import sys
import threading
import warnings

import torch
import torch.nn as nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4))
X = torch.randn(4000, 32)
MORE = (100 << 20,)  # elements that no budget here has room for


class Passes(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Catches(TorchDispatchMode):
    """Tries with more than there is first."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.tanh.default:
            caught(lambda: torch.empty(MORE))
        return function(*args, **(kwargs or {}))


got = []


def caught(f):
    try:
        return f()
    except torch.OutOfMemoryError as error:
        got.append(str(error))


def train(net, x):
    loss = net(x).pow(2).mean()
    loss.backward()
    return loss


def dispatch_mode():
    with Passes():
        caught(lambda: train(NET, X))


def dispatch_mode_in_backward():
    loss = NET(X[:3000]).pow(2).mean()
    with Passes():
        caught(loss.backward)


def dispatch_mode_that_catches():
    with Catches(), torch.no_grad():
        NET(X[:10])


def jagged():
    caught(lambda: NET(torch.nested.nested_tensor([X[:1000]] * 4, layout=torch.jagged)))


def strided_nested():
    caught(lambda: NET(torch.nested.nested_tensor([X[:1000]] * 4)))


def subclass():
    caught(lambda: NET(TwoTensor(X, X)))


def distributed_tensor():
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    for name, parameter in list(NET.named_parameters()):
        module, _, attribute = name.rpartition(".")
        setattr(NET.get_submodule(module), attribute, nn.Parameter(DTensor.from_local(parameter.detach(), mesh, [Replicate()])))
    caught(lambda: train(NET, DTensor.from_local(X, mesh, [Replicate()])).to_local())
    dist.destroy_process_group()


def compiled():
    net = torch.compile(NET)
    for _ in range(2):
        caught(lambda: train(net, X))


def compiled_backward():
    net = torch.compile(NET)
    caught(lambda: train(net, X[:3000]))


def compiled_with_room():
    net = torch.compile(nn.Sequential(*NET[:5]))
    for _ in range(3):
        train(net, X[:10])


def numbers_from_a_list():
    numbers = [0.0] * 9_000_000
    caught(lambda: torch.tensor(numbers))


def plain_operator():
    for _ in range(3):
        caught(lambda: torch.empty(MORE))


def a_model_too_large():
    caught(lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4 << 20)))


def autograd_function():
    class Wide(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            caught(lambda: torch.empty(MORE))
            return x.expand(MORE[0], -1).clone() if ctx is not None else x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    caught(lambda: Wide.apply(NET(X[:1])))


def hook_that_catches():
    loss = NET(X[:10]).pow(2).mean()
    NET[6].weight.register_hook(lambda gradient: caught(lambda: torch.empty(MORE)))
    loss.backward()


def create_graph():
    def penalty():
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(NET(x).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()
    caught(penalty)


def another_thread():
    thread = threading.Thread(target=lambda: caught(lambda: torch.empty(MORE)))
    thread.start()
    thread.join()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]]()
    print(len(got))
    for message in got:
        assert "out of memory" in message, message
