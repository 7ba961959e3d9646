"""Holds what a test did under koila against what it did without.

A test's numbers are digests (koila_suite_plugin.py): the 2-norm and two dot products of every loss, gradient and parameter. An error in an array of norm n moves
them by as much as the error's own norm, so equal within rounding means: by no more than TOLERANCE * n, where n is at least a tenth of the largest norm among
its like (all gradients of that pass). What a test makes of rounding (Adam's first steps, a hundred steps of reinforcement learning) is found by a plain run whose
gradients are stirred by some roundings: what that run moves may move by MORE times as much, and where it moves beyond CHAOS nothing is compared any more.
"""

import math

TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
MORE = 100
CHAOS = 1e-2
FLOOR = 0.1


def same_bits(plain, other):
    """What differs, or None. `plain` and `other` are records of the plugin."""
    if plain["outcome"] != other["outcome"]:
        return f"{other['outcome']} ({other['error']}), plain {plain['outcome']} ({plain['error']})"
    if len(plain["records"]) != len(other["records"]):
        return f"{len(other['records'])} passes and steps, plain {len(plain['records'])}"
    for number, (a, b) in enumerate(zip(plain["records"], other["records"])):
        if a["kind"] != b["kind"]:
            return f"{b['kind']}, plain {a['kind']}"
        if a["random"] != b["random"]:
            return f"{a['kind']} {number}: the generator's state"
        for what in ("roots", "leaves"):
            if text(a.get(what)) != text(b.get(what)):
                return f"{what} of {a['kind']} {number} differ in their bits"
    return None


def text(digests):
    # As text, for NaN is equal to itself there. Which leaf comes first is of no meaning.
    return sorted(map(repr, digests or []))


def equal(plain, other, stirred=None):
    """("equal" | "other draws" | "violation", why)."""
    if plain["outcome"] != other["outcome"]:
        if stirred and stirred["outcome"] != plain["outcome"]:
            return "equal", "rounding alone changes the outcome"
        return "violation", f"{other['outcome']} ({other['error']}), plain {plain['outcome']} ({plain['error']})"
    if plain["outcome"] == "failed" and plain["error"].split(":")[0] != other["error"].split(":")[0]:
        return "violation", f"{other['error']}, plain {plain['error']}"
    noise = stirred["records"] if stirred else []
    for number, (a, b) in enumerate(zip(plain["records"], other["records"])):
        beside = noise[number] if number < len(noise) else a
        level = spread(a, beside)
        if level > CHAOS:
            return "equal", f"rounding alone moves it from {a['kind']} {number} on"
        why = difference(a, b, level)
        if why:
            if other_draws(plain, other, number):
                return "other draws", f"{a['kind']} {number}: {why}"
            return "violation", f"{a['kind']} {number}: {why}"
    if len(plain["records"]) != len(other["records"]):
        return "violation", f"{len(other['records'])} passes and steps, plain {len(plain['records'])}"
    return "equal", ""


def other_draws(plain, other, number):
    """Whether random numbers were drawn per micro-batch up to here: the generator is then elsewhere than in the plain run."""
    return any(a["random"] != b["random"] for a, b in zip(plain["records"][:number + 1], other["records"]))


def spread(a, b):
    """The largest relative distance between two records that ought to be the same."""
    worst = 0.0
    for what in ("roots", "leaves"):
        for x, y, scale in pairs(a.get(what) or [], b.get(what) or []):
            if x is None or y is None:
                return math.inf
            if numbers(x) and numbers(y) and scale:
                worst = max(worst, distance(x, y) / scale)
    return worst


def numbers(x):
    return x is not None and len(x) == 6 and x[3] is not None


def distance(x, y):
    found = max(abs(p - q) for p, q in zip(x[3:], y[3:]))
    return found if not math.isnan(found) else math.inf


def sort_key(x):
    if not numbers(x):
        return (repr(x and x[:2]), 0.0, 0.0, repr(x))
    return (repr(x[:2]), x[3] if math.isfinite(x[3]) else math.inf, x[4] if math.isfinite(x[4]) else math.inf, "")


def pairs(a, b):
    """Digests side by side, each with the size that its error is held against. The order of leaves is of no meaning, so those of one shape go by nearness."""
    largest = max((x[3] for x in a if numbers(x) and math.isfinite(x[3])), default=0.0)
    rest = {}
    for y in b:
        rest.setdefault(repr(y and y[:2]), []).append(y)
    for x in sorted(a, key=sort_key):
        like = rest.get(repr(x and x[:2]), [])
        if not like:
            yield x, None, 0.0
            continue
        best = min(like, key=lambda y: distance(x, y) if numbers(x) and numbers(y) else (0 if x == y else math.inf))
        like.remove(best)
        scale = max(x[3], FLOOR * largest) if numbers(x) else 0.0
        yield x, best, scale
    for like in rest.values():
        for y in like:
            yield None, y, 0.0


def same_number(x, y):
    return repr(x[3:]) == repr(y[3:])


def difference(a, b, level=0.0):
    """What differs between two records beyond rounding, or None."""
    if a["kind"] != b["kind"]:
        return f"{b['kind']}, plain {a['kind']}"
    for what in ("roots", "leaves"):
        for x, y, scale in pairs(a.get(what) or [], b.get(what) or []):
            if x is None and y is None:
                continue
            if x is None or y is None:
                return f"{what}: {'one more' if x is None else 'one is missing'}: {(x or y)[:2]}"
            if isinstance(y[2], str) or isinstance(x[2], str):
                if x[2:] != y[2:]:
                    return f"{what} {x[:2]}: {y[2]}, plain {x[2]}"
                continue
            if not numbers(x):
                if x != y:
                    return f"{what} {x[:2]}: other values"
                continue
            if same_number(x, y):
                continue
            if not all(map(math.isfinite, x[3:])) or not all(map(math.isfinite, y[3:])):
                return f"{what} {x[:2]}: {y[3:]}, plain {x[3:]}"
            allowed = max(TOLERANCE.get(x[0], 1e-4), MORE * level)
            found = distance(x, y)
            if found > allowed * scale and found > 1e-30:
                return f"{what} {x[:2]}: off by {found:.3g} of {x[3]:.3g} (relative {found / scale if scale else math.inf:.3g}, allowed {allowed:.1g})"
    return None
