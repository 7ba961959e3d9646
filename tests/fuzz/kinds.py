"""The kinds of statements that a step is made of. Each is a function that adds one or a few statements to a context, or none, and says whether it did.

A seed gives the same program for as long as the kinds are registered in the same order: kinds of operators.py first, of wild.py last.
"""

WEIGHTS = {}  # how often one is tried
LATER = {}  # the same of those that came later: some programs have them at the end, and draw for them from random numbers of their own, so that the others stay as they were


def kind(weight, later=False):
    def register(function):
        (LATER if later else WEIGHTS)[function] = weight
        return function
    return register
