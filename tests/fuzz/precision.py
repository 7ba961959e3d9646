"""In which numbers a program computes, and how far from the plain run's it may end.

A plain run is made a second time with noise of the size of rounding on its batches and parameters, and on one of two tensors that it compares: two that are
equal by nature (one expression computed twice) are so to the bit in the plain run, and need not be elsewhere. A program that makes more of it than `most_amplified` is left out, so a
difference beyond `tolerance` is not rounding. A row of eight that is lost moves a mean by an eighth, a gradient that is counted twice by its own size: both are far beyond.
"""

import dataclasses

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclasses.dataclass(frozen=True)
class Precision:
    name: str
    dtype: str
    noise: float  # relative, a few roundings
    most_amplified: float  # what may become of the noise: all of these are shares of the largest entry
    tolerance: float
    floor: float  # what is smaller, and so are all of its like, is rounding of what is zero
    share: float  # of the largest of its like (the same kind of value, over all steps): what is smaller may hold rounding only
    draws: int = 1  # of noise: the coarser the numbers, the more often it is by luck that nothing comes of it
    most_rows: int = 24


FLOAT64 = Precision("float64", "float64", 1e-13, 1e-8, 3e-8, 1e-7, 1e-3)
FLOAT32 = Precision("float32", "float32", 3e-7, 2e-4, 1e-3, 1e-2, 1e-2, draws=2)
AUTOCAST = Precision("autocast", "float32", 2e-3, 3e-2, 6e-2, 3e-2, 2e-1, draws=3, most_rows=8)
PRECISIONS = {precision.name: precision for precision in (FLOAT64, FLOAT32, AUTOCAST)}


COMPARISONS = {torch.ops.aten.gt.Tensor, torch.ops.aten.ge.Tensor, torch.ops.aten.lt.Tensor, torch.ops.aten.le.Tensor, torch.ops.aten.eq.Tensor, torch.ops.aten.ne.Tensor}


class Apart(TorchDispatchMode):
    """Compares a tensor with another one that has noise on it. What a backward pass compares (an entry with the maximum that it may be) stays."""

    def __init__(self, disturbed):
        super().__init__()
        self.disturbed = disturbed  # gives a tensor with noise on it

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in COMPARISONS and args[0] is not args[1] and torch._C._current_autograd_node() is None:
            args = (self.disturbed(args[0].clone()), args[1])
        return function(*args, **(kwargs or {}))
