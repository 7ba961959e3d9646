"""A program in the making: every statement is run as it is added, so that shapes are known and what raises is left out."""

import contextlib
import random

import functions
import torch

from program import NAMESPACE, Program, Statement

MOST_ENTRIES = 6000
LARGEST = 1e4


class Context:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.program = Program(seed, [], [])
        self.namespace = {**NAMESPACE, "step": 0}
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(seed)
        self.modes = random.Random(f"modes {seed}")  # what a program is beyond its statements is drawn from numbers of its own
        self.empty = False  # whether tensors without entries are let be
        self.counts = {}
        self.floats = []  # tensors of the step that a loss may come from
        self.whole = []  # integers and masks of the step
        self.modules = {}  # name -> (a key that says what it takes, its outputs' kind)
        self.rows = 0
        self.ragged = False
        self.no_rows = False  # whether a batch has none
        self.namespace["note"] = Silent()

    # ---- random choices ----------------------------------------------------------------------------------------------------------

    def one_in(self, n):
        return self.random.randrange(n) == 0

    def any(self, sequence):
        return self.random.choice(list(sequence))

    def number(self):
        """A factor that is no power of two."""
        return self.any((0.3, 0.7, 1.1, 1.7, -0.6, 2.5))

    # ---- names and tensors -------------------------------------------------------------------------------------------------------

    def new(self, letter):
        self.counts[letter] = self.counts.get(letter, -1) + 1
        return f"{letter}{self.counts[letter]}"

    def tensor(self, name):
        return self.namespace[name]

    def sizes(self, name):
        return list(self.namespace[name].shape)

    def pick(self, test=lambda sizes: True, recent=True):
        """The name of a tensor whose sizes pass the test; of the last ones rather than of the first."""
        fit = [name for name in self.floats if test(self.sizes(name))]
        if not fit:
            return None
        if recent and not self.one_in(3):
            fit = fit[-3:]
        return self.any(fit)

    def dim(self, name):
        """A dimension of the tensor, counted from either end; the batch's as often as another."""
        dims = len(self.sizes(name))
        if dims == 0:
            return None
        return self.random.randrange(-dims, dims)

    def size(self, n):
        """How the program writes a size: where batches are ragged, by the number of rows."""
        if self.ragged and n > 0 and n % self.rows == 0:
            return "b0" if n == self.rows else f"b0 * {n // self.rows}"
        return str(n)

    def list_of(self, sizes):
        return ", ".join(self.size(n) for n in sizes)

    # ---- statements --------------------------------------------------------------------------------------------------------------

    def add(self, text, defines=(), operators=(), section="step"):
        """Runs the statement, and keeps it if all goes well. Whether it did."""
        if self.program.precision.dtype == "float32":
            text = text.replace(".double()", ".float()").replace("torch.float64", "torch.float32")
        autocast = section == "step" and self.program.precision.name == "autocast" and self.modes.randrange(4) > 0
        statement = Statement(text, tuple(defines), tuple(operators), section, autocast)
        before = {name: self.namespace.get(name) for name in defines}
        try:
            with functions.autocast() if autocast else contextlib.nullcontext():
                exec(text, self.namespace)
            good = all(self._good(self.namespace[name]) for name in defines) and all(self._good(self.namespace.get(name)) for name in statement.uses if name[0] == "h")
        except Exception:  # noqa: BLE001: whatever an operator says of arguments that it does not take
            good = False
        if not good:
            self.namespace.update(before)
            return False
        getattr(self.program, section).append(statement)
        for name in defines:
            value = self.namespace[name]
            if isinstance(value, torch.Tensor):
                self.program.shapes[name] = (tuple(value.shape), str(value.dtype))
                if section == "step" and name[0] in "hx":
                    (self.floats if value.is_floating_point() else self.whole).append(name)
        return True

    def _good(self, value):
        if not isinstance(value, torch.Tensor):
            return True
        if value.layout != torch.strided or value.is_complex() or value.numel() > MOST_ENTRIES or value.dim() > 5:
            return False
        if value.numel() == 0 and self.rows > 0 and not self.empty:
            return False
        if not value.is_floating_point():
            return True
        with torch.no_grad():
            return self._kind_fits(value) and bool(value.isfinite().all()) and (value.numel() == 0 or value.abs().max().item() < LARGEST)

    def _kind_fits(self, value):
        precision = self.program.precision
        return value.dtype == getattr(torch, precision.dtype) or precision.name == "autocast" and value.dtype == torch.bfloat16

    def compute_in(self, precision):
        self.program.precision = precision
        torch.set_default_dtype(getattr(torch, precision.dtype))

    def let(self, expression, operator):
        """h = expression."""
        name = self.new("h")
        return self.add(f"{name} = {expression}", (name,), (operator,))

    def let_any(self, choices, prefix=""):
        """One of the expressions, by the names of their operators."""
        name = self.any(choices)
        return self.let(choices[name], prefix + name)

    def setup(self, letter, expression):
        name = self.new(letter)
        return name if self.add(f"{name} = {expression}", (name,), (), "setup") else None

    def parameter(self, *sizes):
        """A new parameter, or one of that shape that there is."""
        same = [name for name in self.program.names("w") if self.sizes(name) == list(sizes)]
        if same and self.one_in(3):
            return self.any(same)
        return self.setup("w", f"nn.Parameter(torch.randn({', '.join(map(str, sizes))}) * 0.5)" if sizes else "nn.Parameter(torch.tensor(0.8))")

    def module(self, key, expression):
        """A module; one that takes the same runs twice now and then."""
        same = [name for name, of in self.modules.items() if of == key]
        if same and self.one_in(2):
            return self.any(same)
        name = self.setup("m", expression)
        if name:
            self.modules[name] = key
        return name


class Silent:
    """Stands in for notes while the program is made."""

    def value(self, *_):
        pass

    keep = value

    def data(self, tensor):
        return tensor
