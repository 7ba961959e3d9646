"""What came out of the checks, by operator and by family."""

import collections

import calls


class Operator:
    """All verdicts on one entry of a database."""

    def __init__(self, name, info):
        self.name = name
        self.family = calls.family(name, info)
        self.counts = collections.Counter()
        self.separable = collections.Counter()  # outcomes of the calls whose rows are independent
        self.whole = collections.Counter()
        self.example = {}

    def add(self, found):
        self.counts[found.outcome] += 1
        if found.separable:
            self.separable[found.outcome] += 1
            if found.outcome == "whole":
                self.whole.update(found.whole or ["?"])
                self.example.setdefault("whole", f"{found.call} {found.detail}")

    @property
    def is_separable(self):
        return sum(self.separable.values()) > 0

    @property
    def share(self):
        """Of the calls whose rows are independent, those that were split."""
        return self.separable["split"] / max(1, sum(self.separable.values()))

    @property
    def splits(self):
        return self.share >= 0.5


class Summary:
    def __init__(self, found):
        infos = calls.operators() | calls.modules()
        self.operators = {}
        self.violations = [f for f in found if f.outcome in ("wrong", "error", "crashed")]
        self.refused = [f for f in found if f.outcome == "refused"]
        for f in found:
            name = f.order.name
            self.operators.setdefault(name, Operator(name, infos[name])).add(f)
        self.counts = sum((o.counts for o in self.operators.values()), collections.Counter())

    @property
    def separable(self):
        return [o for o in self.operators.values() if o.is_separable]

    def text(self, details=False):
        lines = []
        for o in sorted(self.separable, key=lambda o: o.name):
            if not o.splits or (details and o.share < 1):
                lines.append(f"{o.name}: {o.share:.0%} of {sum(o.separable.values())} split; whole: {dict(o.whole)}; {o.example.get('whole', '')}")
        splits = sum(o.splits for o in self.separable)
        entirely = sum(o.share == 1 for o in self.separable)
        lines.append(f"{len(self.operators)} operators and modules, {len(self.separable)} with independent rows, {splits} of these split "
                     f"({splits / max(1, len(self.separable)):.1%}), {entirely} in every call")
        lines.append("calls: " + ", ".join(f"{n} {outcome}" for outcome, n in self.counts.most_common()))
        return "\n".join(lines)

    def markdown(self):
        raise NotImplementedError
