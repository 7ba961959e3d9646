"""A generated training program: statements in two sections, and how they become the text of a script.

A program is straight-line code over tensors. `setup` runs once and makes modules, parameters and state; `step` runs for each step of training. Every
statement knows the names that it defines and uses, so that the shrinker can leave one out and put another tensor of the same shape in its place.
"""

import dataclasses
import re

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
from functions import Bent, Halves, Identity, Marked, Scale, Square
"""


@dataclasses.dataclass
class Statement:
    text: str  # one or more lines, without the indentation of its section
    defines: tuple = ()
    operators: tuple = ()  # for the table of what was reached
    section: str = "step"

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

    def names(self, letter):
        return [name for statement in self.setup for name in statement.defines if name[0] == letter]

    def source(self):
        """The text of a function `program(note)`; `note` is of notes.py."""
        modules, parameters, state = self.names(MODULE), self.names(PARAMETER), self.names(STATE)
        lines = ["def program(note):", f"    torch.manual_seed({self.seed})", "    torch.set_default_dtype(torch.float64)"]
        for statement in self.setup:
            if not statement.text.startswith("o0 ="):
                lines += indented(statement.text, 4)
        lines.append(f"    net = nn.ModuleList([{', '.join(modules)}])")
        lines.append(f"    trained = note.trained([*net.parameters(){''.join(', ' + name for name in parameters)}])")
        for statement in self.setup:
            if statement.text.startswith("o0 ="):
                lines += indented(statement.text, 4)
        lines.append(f"    for step in note.steps({self.steps}):")
        body = [line for statement in self.step for line in indented(statement.text, 8)]
        lines += body or ["        pass"]
        lines.append(f"        note.state(net, trained, {{{', '.join(f'{name!r}: {name}' for name in state)}}})")
        return "\n".join(lines) + "\n"

    def script(self, title, command):
        """A whole script that anybody can run."""
        main = 'if __name__ == "__main__":\n    from notes import Printed\n\n    program(Printed())\n'
        return HEADER.format(title=title, command=command) + "\n" + IMPORTS + "\n\n" + self.source() + "\n\n" + main

    def compiled(self):
        """The function itself."""
        namespace = {}
        exec(compile(IMPORTS + self.source(), f"<program {self.seed}>", "exec"), namespace)
        return namespace["program"]


@dataclasses.dataclass
class Script:
    """A program that lies in a file."""
    path: str
    steps: int = 2
    seed: int = 0

    def compiled(self):
        namespace = {"__name__": "script"}
        with open(self.path) as file:
            exec(compile(file.read(), self.path, "exec"), namespace)
        return namespace["program"]


def indented(text, by):
    return [" " * by + line for line in text.split("\n")]
