"""What `scripts/test` leaves to `scripts/test --full`: tests and values of parameters that are marked `full`, where they stand.

Which values of a long list are in the quick run is told by their names alone, so that a new one does not change what is taken of the others.
"""

import zlib

import pytest

full = pytest.mark.full


def in_full(value):
    """A value of a parameter, or a tuple of values, that the quick run leaves out."""
    if hasattr(value, "marks"):
        return pytest.param(*value.values, marks=[*value.marks, full], id=value.id)
    return pytest.param(*value, marks=full) if isinstance(value, tuple) else pytest.param(value, marks=full)


def only(quick, values):
    """The values, of which the quick run takes those named."""
    return [value if value in quick else in_full(value) for value in values]


def taken(number, values):
    """One value in so many."""
    return [value for value in values if zlib.crc32(str(value.values if hasattr(value, "marks") else value).encode()) % number == 0]


def one_in(number, values):
    """The values, of which the quick run takes one in so many."""
    return only(taken(number, values), values)
