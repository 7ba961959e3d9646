"""What came out of the checks, by operator and by family."""

import collections
from pathlib import Path

import calls
import registry

# Why rows that are independent are not split, by operator.
REASONS = {
    "_native_batch_norm_legit": "it may write to the running statistics that it is given: programs reach it through `batch_norm`",
    "_unsafe_masked_index": "made by the compiler's decompositions; no rule",
    "_unsafe_masked_index_put_accumulate": "made by the compiler's decompositions; no rule",
    "combinations": "how many entries come out depends on values",
    "index_put": "the samples' mask lies over the rows and picks none",
    "linalg.lstsq": "some of its results are empty, depending on shapes and driver",
    "linalg.lu_solve": "rows of the right-hand side as an operand of its own",
    "linalg.matrix_rank": "rank over a whole matrix; a sample's rank happens to be a sum",
    "linalg.norm": "of whole matrices and vectors",
    "linalg.pinv": "a product of two matrices with the rows in one",
    "linalg.solve_triangular": "rows of the right-hand side as an operand of its own",
    "masked_scatter": "the samples' mask names other numbers of entries than the source has for each row",
    "native_batch_norm": "with the batch's statistics it runs whole: programs reach it through `batch_norm`",
    "nn.functional.bilinear": "the rows are those of the weight",
    "nn.functional.conv_transpose1d": "the rows are those of the weight",
    "nn.functional.conv_transpose2d": "the rows are those of the weight",
    "nn.functional.conv_transpose3d": "the rows are those of the weight",
    "norm": "of whole matrices and vectors",
    "ormqr": "rows of the other operand as an operand of its own",
}



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

    def markdown(self, how):
        separable = self.separable
        splits = sum(o.splits for o in separable)
        lines = [
            "# Conformance", "",
            "<!-- Written by scripts/conformance. -->", "",
            "koila's placement rules against PyTorch's own databases of operators (`op_db`) and modules (`module_db`). Every sample of each, in",
            "float64, float32, int64 and bool where it takes them, and in place where it has a twin, is run plain and split along its first",
            "dimension, in micro-batches of one row and of a half, rounded up: values, gradients of all inputs and parameters, buffers, shapes and dtypes are compared",
            "(1e-9 of the largest value in float64, 1e-5 in float32). What draws random numbers is compared by shape. Whether rows are independent is found out from the",
            "plain operator: one row at a time has to give what all rows give together, side by side or summed.", "",
            f"Measured with {how}.", "",
            f"- {len(self.operators)} operators and modules, {sum(self.counts.values()) - self.counts['skipped']} calls.",
            f"- Wrong: {self.counts['wrong'] + self.counts['error']}. Crashed: {self.counts['crashed']}. Refused: {self.counts['refused']}.",
            f"- Rows are independent in {len(separable)}; {splits} of these split ({splits / max(1, len(separable)):.1%}): "
            f"{sum(o.share == 1 for o in separable)} in every such call, the others in at least half of them.", "",
            "## By family", "",
            "Calls by outcome. *Full batch*: exact, and not split, because rows depend on one another or there is no rule.", "",
            "| family | operators | rows independent | of these split | exact and split | full batch | random | refused | wrong | crashed |",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        ]
        for family in sorted({o.family for o in self.operators.values()}):
            members = [o for o in self.operators.values() if o.family == family]
            counts = sum((o.counts for o in members), collections.Counter())
            those = [o for o in members if o.is_separable]
            lines.append(f"| {family} | {len(members)} | {len(those)} | {sum(o.splits for o in those)} | {counts['split']} | {counts['whole']} | {counts['random']} "
                         f"| {counts['refused']} | {counts['wrong'] + counts['error']} | {counts['crashed']} |")
        lines += ["", "## Not split, though rows are independent", "", "| operator | calls split | what ran at full batch | why |", "|---|--:|---|---|"]
        for o in sorted(separable, key=lambda o: o.name):
            if not o.splits:
                whole = ", ".join(f"`{name.removeprefix('aten::')}`" for name in o.whole if name != "?") or "its result is read"
                lines.append(f"| {o.name} | {o.share:.0%} | {whole} | {REASONS.get(o.name.split()[0], 'no rule yet')} |")
        lines += ["", "## Split in some calls", "", "| operator | calls split | what ran at full batch |", "|---|--:|---|"]
        for o in sorted(separable, key=lambda o: o.name):
            if o.splits and o.share < 1:
                lines.append(f"| {o.name} | {o.share:.0%} | " + (", ".join(f"`{name.removeprefix('aten::')}`" for name in o.whole if name != "?") or "its result is read") + " |")
        return "\n".join(lines) + "\n"


REGISTRY = "## Operators with an autograd formula and no rule"


def part_of_registry(path):
    """The part of a page that --registry has written; "" where the page has no such part."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return ""
    at = text.find(REGISTRY)
    return "" if at < 0 else "\n" + text[at:]


def write_registry(path, formulas, names, called, found):
    counts = collections.Counter(f.outcome for f in found)
    bare = lambda name: f"`{name.removeprefix('aten::')}`"
    lines = [
        REGISTRY, "",
        "Of the dispatcher's own registry, by `scripts/conformance --registry` (`tests/conformance/registry.py`): operators of PyTorch's with a kernel for autograd that is a formula's, `out=` left out.", "",
        f"- {formulas} operators; {formulas - len(names)} have a rule, by their own name or their twin's.",
        f"- {len(called)} have none and are shown to run whole without harm, under their own name: as PyTorch's databases call them below autograd (forward, backward, and backward again), with arguments",
        f"  split and with allocations that fail. {counts['whole'] + counts['random']} runs gave plain's numbers, {counts['refused under failure']} an out-of-memory error where an allocation failed and nothing could be split, none anything else.",
        f"- {len(names) - len(called)} have none and cannot be called here: the table below.", "",
        "Shown to run whole: " + ", ".join(bare(name) for name in called) + ".", "",
        "| not called | why |", "|---|---|",
    ]
    why = collections.defaultdict(list)
    for name in names:
        if name not in called:
            why[registry.out_of_reach(name) or "neither a rule nor a test: to be done"].append(name)
    lines += [f"| {', '.join(bare(name) for name in why[reason])} | {reason} |" for reason in sorted(why)]
    page = Path(path)
    text = page.read_text()
    at = text.find(REGISTRY)
    page.write_text((text if at < 0 else text[:at]).rstrip() + "\n\n" + "\n".join(lines) + "\n")
