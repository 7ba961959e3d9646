"""A generated training program: statements in two sections, and how they become the text of a script.

A program is straight-line code over tensors. `setup` runs once and makes modules, parameters and state; `step` runs for each step of training. Every
statement knows the names that it defines and uses, so that the shrinker can leave one out and put another tensor of the same shape in its place.
"""

import dataclasses
import itertools
import re

from precision import FLOAT64, Precision

NAME = re.compile(r"(?<![\w.])([a-z]\d+)(?!\w)")  # x0, h12, m3, w1, ...: the names of a program are a letter and a number
MODULE, PARAMETER, STATE = "m", "w", "s"  # the first letters of what setup makes and the program trains, trains, or writes to

HEADER = '''"""Found by scripts/fuzz: {title}

Run it plain and under koila, and compare what it prints:

    {command}
"""
'''

IMPORTS = """import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from functions import Bent, Halves, Identity, Marked, Scale, Square, autocast
"""
NAMESPACE = {}  # what the imports give
exec(IMPORTS, NAMESPACE)


@dataclasses.dataclass
class Statement:
    text: str  # one or more lines, without the indentation of its section
    defines: tuple = ()
    operators: tuple = ()  # for the table of what was reached
    section: str = "step"
    autocast: bool = False

    @property
    def uses(self):
        return {name for name in NAME.findall(self.text)} - set(self.defines)

    def renamed(self, old, new):
        text = re.sub(rf"(?<![\w.]){old}(?!\w)", new, self.text)
        return dataclasses.replace(self, text=text)


@dataclasses.dataclass
class Program:
    seed: int
    setup: list
    step: list
    steps: int = 2
    shapes: dict = dataclasses.field(default_factory=dict)  # name -> (sizes, dtype), as of the first step
    precision: Precision = FLOAT64
    closure: bool = False  # the optimizer is given the step as a function, which it calls as often as it likes

    reached: frozenset = frozenset()  # operators that it calls, where a table is made

    def names(self, letter):
        return [name for statement in self.setup for name in statement.defines if name[0] == letter]

    def source(self):
        """The text of a function `program(note)`; `note` is of notes.py."""
        modules, parameters, state = self.names(MODULE), self.names(PARAMETER), self.names(STATE)
        lines = ["def program(note):", f"    torch.manual_seed({self.seed})", f"    torch.set_default_dtype(torch.{self.precision.dtype})"]
        for statement in self.setup:
            if not statement.text.startswith("o0 ="):
                lines += indented(statement.text, 4)
        lines.append(f"    net = nn.ModuleList([{', '.join(modules)}])")
        lines.append(f"    trained = note.trained([*net.parameters(){''.join(', ' + name for name in parameters)}])")
        for statement in self.setup:
            if statement.text.startswith("o0 ="):
                lines += indented(statement.text, 4)
        lines.append(f"    for step in note.steps({self.steps}):")
        lines += indented("\n".join(self._closed() if self.closure else texts(self.step)) or "pass", 8)
        lines.append(f"        note.state(net, trained, {{{', '.join(f'{name!r}: {name}' for name in state)}}})")
        return "\n".join(lines) + "\n"

    def _closed(self):
        """The step with its inputs before the closure, and with what follows the optimizer's step behind it."""
        lines, at = [s.text for s in self.step], next((i for i, s in enumerate(self.step) if s.text == "o0.step()"), len(self.step))
        before = [s for s in self.step[:at] if all(name[0] in "xb" for name in s.defines) and s.defines]
        within = [s for s in self.step[:at] if s not in before]
        losses = [name for s in within for name in s.defines if name[0] == "l"]
        inner = "\n".join(texts(within) + [f"return {' + '.join(losses)}" if losses else "pass"])
        return [*texts(before), "def closure():", *indented(inner, 4), "o0.step(closure)", *lines[at + 1:]]

    def script(self, title, command):
        """A whole script that anybody can run."""
        main = 'if __name__ == "__main__":\n    from notes import Printed\n\n    program(Printed())\n'
        return HEADER.format(title=title, command=command) + "\n" + IMPORTS + "\n\n" + self.source() + "\n\n" + main

    def compiled(self):
        """The function itself."""
        namespace = dict(NAMESPACE)
        exec(compile(self.source(), f"<program {self.seed}>", "exec"), namespace)
        return namespace["program"]


@dataclasses.dataclass
class Script:
    """A program that lies in a file."""
    path: str
    steps: int = 2
    seed: int = 0
    precision: Precision = FLOAT64

    def compiled(self):
        namespace = {"__name__": "script"}
        with open(self.path) as file:
            exec(compile(file.read(), self.path, "exec"), namespace)
        return namespace["program"]


def texts(statements):
    """Those that run under autocast, and stand side by side, share one region."""
    lines = []
    for together, group in itertools.groupby(statements, key=lambda s: s.autocast):
        found = [s.text for s in group]
        lines += ["with autocast():", *indented("\n".join(found), 4)] if together else found
    return lines


def indented(text, by):
    return [" " * by + line for line in text.split("\n")]
