"""What is made of errors and of times; no torch."""

import numpy as np


def relative_error(found, wanted):
    """The 2-norm of the difference over the 2-norm of what was wanted, over all arrays together."""
    if len(found) != len(wanted) or any(a.shape != b.shape for a, b in zip(found, wanted)):
        return float("inf")
    difference = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(found, wanted))
    norm = sum(float(np.square(b.astype(np.float64)).sum()) for b in wanted)
    return (difference / norm) ** 0.5 if norm else difference ** 0.5


def outcome_of(error):
    text = str(error).strip()
    if "out of memory" in text or "No executable batch size" in text:
        return "memory"
    return f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"[:200]


def epoch_seconds(times, steps):
    """The seconds of each epoch of `steps` steps behind the first step, or of one that was not finished as its steps have it."""
    marks = times[::steps]
    if len(marks) > 1:
        return [b - a for a, b in zip(marks, marks[1:])]
    return [(times[-1] - times[0]) / (len(times) - 1) * steps] if len(times) > 1 else []
