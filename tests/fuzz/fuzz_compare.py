"""Compares what two runs of a program leave, by name."""

import numpy

from precision import FLOAT64


class Reference:
    """What the plain run left, with all that each comparison needs of it. A value may be zero by nature, and hold rounding only: a share of the largest of its like is what counts."""

    def __init__(self, values, precision=FLOAT64):
        self.values, self.precision = values, precision
        self.largest = {key: largest(value) for key, value in values.items()}
        self.scales = {}
        for key, size in self.largest.items():
            self.scales[group(key)] = max(self.scales.get(group(key), 0.0), size * precision.share)

    def differences(self, values, all_of_them=True):
        """(distance, key) of what is not the same to the bit, the worst first; of what both have where not all is asked for."""
        found = [(float("inf"), key) for key in values if key not in self.values] if all_of_them else []
        for key, value in self.values.items():
            if key in values:
                far = distance(value, values[key], max(self.scales[group(key)], self.largest[key], self.precision.floor))
            else:
                far = float("inf") if all_of_them else 0.0
            if far > 0:
                found.append((far, key))
        return sorted(found, key=lambda pair: -pair[0])


def group(key):
    return key.rstrip("'").split("/")[1]


def largest(value):
    """Of the finite entries."""
    if isinstance(value, numpy.ndarray):
        if value.dtype.kind != "f" or value.size == 0:
            return 0.0
        most = float(numpy.abs(value).max())
        return most if most < float("inf") else float(numpy.abs(numpy.nan_to_num(value, nan=0, posinf=0, neginf=0)).max())
    if isinstance(value, float):
        return abs(value) if abs(value) < float("inf") else 0.0
    if isinstance(value, (list, tuple)):
        return max(map(largest, value), default=0.0)
    return 0.0


def distance(a, b, scale):
    """As a share of the scale; infinite where the two cannot be compared."""
    if isinstance(a, numpy.ndarray):
        if not isinstance(b, numpy.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if a.tobytes() == b.tobytes():
            return 0.0
        if a.dtype.kind != "f":
            return float("inf")
        a, b = a.astype(numpy.float64), b.astype(numpy.float64)
        known = numpy.isfinite(a)
        if not numpy.array_equal(known, numpy.isfinite(b)) or not numpy.array_equal(a[~known], b[~known], equal_nan=True):
            return float("inf")
        return float(numpy.abs(a[known] - b[known]).max(initial=0.0)) / scale
    if isinstance(a, float) and isinstance(b, float):
        if a == b or a != a and b != b:
            return 0.0
        far = abs(a - b) / scale
        return far if far == far else float("inf")
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return max((distance(x, y, scale) for x, y in zip(a, b)), default=0.0)
    return 0.0 if type(a) is type(b) and a == b else float("inf")
