"""In which numbers a program computes, and how far from the plain run's it may end.

A plain run is made a second time with noise of the size of rounding on its batches and parameters, and on one of two tensors that it compares: two that are
equal by nature (one expression computed twice) are so to the bit in the plain run, and need not be elsewhere. A program that makes more of it than `most_amplified` is left out, so a
difference beyond `tolerance` is not rounding. A row of eight that is lost moves a mean by an eighth, a gradient that is counted twice by its own size: both are far beyond.
"""

import dataclasses

import torch


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


FLOAT64 = Precision("float64", "float64", 1e-13, 1e-8, 3e-8, 1e-5, 1e-3)
FLOAT32 = Precision("float32", "float32", 3e-7, 2e-4, 1e-3, 1e-2, 1e-2, draws=2)
AUTOCAST = Precision("autocast", "float32", 2e-3, 3e-2, 6e-2, 3e-2, 2e-1, draws=3, most_rows=8)
PRECISIONS = {precision.name: precision for precision in (FLOAT64, FLOAT32, AUTOCAST)}


class Apart:
    """While it is in force, a comparison of two tensors, and of a tensor's entries, is one with noise on the first. What a backward pass compares (an entry with the maximum that it may be) stays,
    but for that of two tensors of which the larger entry was taken: where they are equal each has half of the gradient.

    Done by kernels of these few operators, just above PyTorch's own: a dispatch mode would cost every operator of the run thirty microseconds.
    """

    COMPARISONS = (*(f"{name}.Tensor" for name in ("gt", "ge", "lt", "le", "eq", "ne")), "argmax", "argmin", "max.dim", "min.dim")
    library = None
    disturbed = None  # gives a tensor with noise on it; None: nothing is in force

    def __init__(self, disturbed):
        self.given = disturbed

    def __enter__(self):
        if Apart.library is None:
            Apart.library = torch.library.Library("aten", "IMPL")
            for name in self.COMPARISONS:
                operator, _, overload = name.partition(".")
                Apart.library.impl(name, _comparison(getattr(getattr(torch.ops.aten, operator), overload or "default")), "ADInplaceOrView", with_keyset=True)
        Apart.disturbed = self.given

    def __exit__(self, *_):
        Apart.disturbed = None


def _by_program():
    node = torch._C._current_autograd_node()
    return node is None or node.name().startswith(("Maximum", "Minimum", "Fmax", "Fmin"))


def _comparison(operator):
    below = torch._C._after_ADInplaceOrView_keyset

    def compare(keys, one, *others, **options):
        if Apart.disturbed is not None and all(one is not other for other in others) and _by_program():
            disturb, Apart.disturbed = Apart.disturbed, None
            try:
                one = disturb(one.clone())
            finally:
                Apart.disturbed = disturb
        return operator.redispatch(keys & below, one, *others, **options)

    return compare
