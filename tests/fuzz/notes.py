"""What a program tells of itself while it runs."""

import numpy
import torch


def outside(tensor):
    """A copy in memory that is not PyTorch's, so that notes take nothing of a budget. NumPy has no bfloat16: it becomes float32, which holds the same numbers."""
    tensor = tensor.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy().copy()
    wide = tensor.contiguous().view(torch.int16).numpy().view(numpy.uint16).astype(numpy.uint32)
    return numpy.asarray(wide << 16).view(numpy.float32)  # a shifted array without dimensions is a plain number


class Notes:
    """Keeps all that the program made, by name, in the order of time; tells a listener when a step begins."""

    def __init__(self, begin=None, noise=0.0, draw=0):
        self.values = {}
        self.begin = begin or (lambda step: None)
        self.noise = noise
        self.generator = torch.Generator().manual_seed(draw)
        self.step = -1
        self.kept = []
        self.retaining = []

    def steps(self, count):
        for step in range(count):
            self.step = step
            self.begin(step)
            yield step
            self.begin(None)
            for name, tensor in self.kept:
                self._put(name, tensor)
            self.kept = []
            for name, tensor in self.retaining:
                self._put(name, "none" if tensor.grad is None else tensor.grad)
            self.retaining = []

    def _put(self, name, value):
        key = f"{self.step}/{name}"
        while key in self.values:
            key += "'"
        self.values[key] = outside(value) if isinstance(value, torch.Tensor) else value

    def value(self, name, value):
        """Something that the program reads now: a number, a list, a tensor."""
        self._put(name, value)

    def keep(self, name, tensor):
        """A tensor that the program holds, and reads after the step."""
        self.kept.append((name, tensor))

    def retain(self, name, tensor):
        """A tensor whose gradient the program reads after the step."""
        tensor.retain_grad()
        self.retaining.append((name, tensor))

    def disturbed(self, tensor):
        """The tensor, with noise written to it where a program's conditioning is measured."""
        if self.noise and tensor.is_floating_point():
            with torch.no_grad():
                tensor.mul_(1 + self.noise * torch.randn(tensor.shape, generator=self.generator, dtype=torch.float64, device="cpu").to(tensor))
        return tensor

    def data(self, tensor):
        """A batch."""
        return self.disturbed(tensor)

    def trained(self, parameters):
        for parameter in parameters:
            self.disturbed(parameter)
        return parameters

    def state(self, net, trained, state):
        """All that the step leaves behind."""
        self.begin(None)
        for i, parameter in enumerate(trained):
            self._put(f"gradient/{i}", parameter.grad)
            self._put(f"parameter/{i}", parameter)
        for name, buffer in net.named_buffers():
            self._put(f"buffer/{name}", buffer)
        for name, tensor in state.items():
            self._put(f"state/{name}", tensor)
        self._put("generator", torch.get_rng_state())
        if torch.cuda.is_available():
            self._put("generator of the device", torch.cuda.get_rng_state())


class Printed(Notes):
    """For a script of its own: prints digests."""

    def _put(self, name, value):
        if isinstance(value, torch.Tensor):
            wide = value.detach().to("cpu", torch.float64).flatten()
            value = f"{list(value.shape)} {wide.sum().item():.9g} {wide.square().sum().item():.9g}"
        print(f"{self.step}/{name}", value)
