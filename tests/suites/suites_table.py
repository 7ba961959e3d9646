"""What came out, as text and as docs/suites.md."""

import collections

import compare


class Summary:
    def __init__(self, suite, runs, modes):
        self.suite, self.modes = suite, modes
        plain, again, stirred = runs["plain"], runs["again"], runs["stirred"]
        self.left_out = collections.Counter()
        self.tests = []
        for name, record in plain.items():
            if any(part in name for part in suite.leave_out):
                continue
            if record["outcome"] == "skipped":
                self.left_out["skipped by itself"] += 1
            elif record["outcome"] in ("timeout", "crash"):
                self.left_out["too long" if record["outcome"] == "timeout" else "crashes plain"] += 1
            elif record["outcome"] == "failed" and not record["records"]:
                self.left_out["fail plain before their first pass"] += 1
            elif name not in again:
                self.left_out["not run again for want of time"] += 1
            elif compare.same_bits(record, again[name]) is not None:
                self.left_out["not the same twice"] += 1
            else:
                self.tests.append(name)
        self.failing = sum(plain[name]["outcome"] == "failed" for name in self.tests)
        self.passes = sum(bool(plain[name]["records"]) for name in self.tests)
        self.counts = {mode: collections.Counter() for mode in modes}
        self.violations = []
        for mode in modes:
            for name in self.tests:
                other = runs[mode].get(name)
                if other is None:
                    continue
                verdict, why = judge(mode, plain[name], other, stirred.get(name))
                if verdict == "violation" and mode != "preload" and any(part in name for part in suite.looked_at):
                    verdict = "explained"
                self.counts[mode][verdict] += 1
                figures = other.get("figures")
                if figures:
                    self.counts[mode]["split"] += figures[0] > 0
                    self.counts[mode]["rescued"] += figures[1] > 0
                if verdict == "violation":
                    self.violations.append((mode, name, why))

    def text(self):
        lines = [f"== {self.suite.name} {self.suite.version}: {len(self.tests)} tests, {self.passes} with backward passes or steps; {self.failing} fail plain; "
                 f"left out: {dict(self.left_out)}"]
        for mode in self.modes:
            lines.append(f"   {mode:22} {dict(self.counts[mode])}")
        lines += [f"   VIOLATION {mode}: {name}\n      {why}" for mode, name, why in self.violations]
        return "\n".join(lines)


def judge(mode, plain, other, stirred):
    if mode == "preload":
        why = compare.same_bits(plain, other)
        return ("violation", why) if why else ("equal", "")
    if other["outcome"] == "timeout":
        return "too long", other["error"]
    if other["outcome"] == "oom":
        return "out of memory", other["error"]
    return compare.equal(plain, other, stirred)


def markdown(summaries, modes, date):
    total = sum(len(s.tests) for s in summaries)
    runs = sum(c["equal"] + c["out of memory"] + c["other draws"] + c["explained"] + c["too long"] + c["violation"] for s in summaries for c in s.counts.values())
    violations = sum(len(s.violations) for s in summaries)
    lines = ["# Other people's test suites", "", "<!-- Written by scripts/suites --write. -->", "",
             "Packages of the registry, by name and version: their own tests where the source package has them, else programs over what they offer (`tests/suites/programs`).",
             "Every test is run plain, under the bare preload, in micro-batches of one and of three rows, and with allocations that fail in its steps (one, or about three), with",
             "`KOILA_LADDER` `1`, `0,1` and unset. What is compared: the outcome, and after every backward pass the loss and the gradients of all leaves, after every optimizer step the",
             "parameters; under the bare preload bit for bit, else within rounding (`tests/suites/compare.py`). Dropout is off where a suite is not about it: micro-batches draw other masks.", "",
             f"On {date}: {total} tests, {runs} runs under koila, {violations} violations.", "",
             "*Other draws*: an operator drew random numbers per micro-batch, so the numbers are others and were not compared.", "",
             "| suite | version | what is run | tests | of these with backward passes or steps |", "|---|---|---|--:|--:|"]
    for s in summaries:
        lines.append(f"| {s.suite.name} | {s.suite.version or 'torch'} | {s.suite.what} | {len(s.tests)} | {s.passes} |")
    lines += ["", "## By mode", "", "Tests: equal / out of memory / other draws, explained or too long (one row at a time) / **violations**; in brackets those with a step that was split.",
              "Where the numbers of a row grow fewer, its time was up (`--minutes`): the next call of `scripts/suites` goes on there.", "",
              "| suite | " + " | ".join(modes) + " |", "|---|" + "---|" * len(modes)]
    for s in summaries:
        cells = []
        for mode in modes:
            c = s.counts[mode]
            cell = f"{c['equal']} / {c['out of memory']} / {c['other draws'] + c['explained'] + c['too long']} / **{c['violation']}**"
            cells.append(cell + (f" ({c['split']})" if mode != "preload" else ""))
        lines.append(f"| {s.suite.name} | " + " | ".join(cells) + " |")
    lines += ["", "## Left out", "", "| suite | how many, and why |", "|---|---|"]
    for s in summaries:
        reasons = [f"{count} {why}" for why, count in sorted(s.left_out.items())]
        reasons += [f"`{part}`: {why}" for part, why in s.suite.leave_out.items()]
        lines.append(f"| {s.suite.name} | {'; '.join(reasons) or 'nothing'} |")
    looked_at = [(s, part, why) for s in summaries for part, why in s.suite.looked_at.items()]
    if looked_at:
        lines += ["", "## Explained", "", "Tests that may go another way than plain, and were looked at:", ""]
        lines += [f"- {s.suite.name}, `{part}`: {why}." for s, part, why in looked_at]
    found = [(s, *v) for s in summaries for v in s.violations]
    if found:
        lines += ["", "## Violations", "", "| suite | mode | test | what |", "|---|---|---|---|"]
        lines += [f"| {s.suite.name} | {mode} | `{name.rsplit('/', 1)[-1]}` | {why.replace('|', '/').splitlines()[0][:200]} |" for s, mode, name, why in found]
    return "\n".join(lines) + "\n"
