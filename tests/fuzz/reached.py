"""Which operators programs reach, and which of those with a placement rule none has reached."""

import re
from pathlib import Path

import torch

RULES = Path(__file__).resolve().parents[2] / "torchglue" / "placement" / "rules"


def with_a_rule():
    """Names without overloads, as they stand in the tables of the rules."""
    return {name for path in RULES.glob("*.cc") for name in re.findall(r'\{"(aten::\w+)', path.read_text())}


def by(function, notes):
    """The operators that a run calls, composite ones and their parts, and those of its backward passes."""
    with torch.autograd.profiler.profile() as profile:
        function(notes)
    return frozenset(event.name for event in profile.function_events if event.name.startswith("aten::"))


def table(operators, pairs, reached):
    """Of kinds of statements and of pairs of neighbours: how often; of operators: in how many programs."""
    rules = with_a_rule()
    return {"kinds": operators.most_common(), "pairs": [[*pair, count] for pair, count in pairs.most_common()], "operators": reached.most_common(), "with a rule": len(rules), "never reached": sorted(rules - set(reached))}
