"""Makes a failing program as small as it stays failing, and writes it out as a script."""

import dataclasses
import json
import pickle
import time

from fuzz_driver import Gone, Worker, leaks_by_itself
from verdict import Setting, Verdict

SECONDS = 120  # for one finding


def sweep(kind, setting, steps):
    """Settings of the same kind: a smaller program takes other bytes and other allocations."""
    if kind == "changed":
        return [Setting()]
    if setting is None:
        return [Setting()] + sweep(kind, Setting(budget=0.5), steps) + sweep(kind, Setting(inject="nth:1"), steps)
    begins = sorted({0, min(setting.begin, steps - 1)})
    if setting.budget:
        return [dataclasses.replace(setting)] + [Setting(budget=i / 40, begin=begin) for begin in begins for i in range(12, 40)]
    if setting.inject:
        return [dataclasses.replace(setting)] + [Setting(inject=f"nth:{i}", begin=begin) for begin in begins for i in range(1, 120)]
    return [Setting()]


class Judge:
    """Whether a program still fails, in processes of its own."""

    def __init__(self, finding):
        self.finding = finding
        self.plain, self.under_koila = Worker(), None
        self.found = None
        self.ways = [self._settings, self._as_run]  # of making it fail, until one has done so

    def fails(self, program):
        try:
            blob = self.plain.ask("again", program)
        except Gone:
            self.plain = Worker()
            return False
        if not isinstance(blob, tuple):
            return False
        for way in self.ways:
            if way(blob, program):
                if self.found[1] == "leak" and leaks_by_itself(blob):
                    return False
                self.ways = [way]
                return True
        return False

    def _ask(self, *request):
        """The verdict that is looked for, or None."""
        if self.under_koila is None:
            self.under_koila = Worker(self.finding.environment)
        try:
            verdicts = self.under_koila.ask(*request)
        except Gone as gone:
            self.under_koila = None
            kind = self.finding.kind.split(":")[0]
            return Verdict(None, str(gone)) if str(gone).split(":")[0] == kind else None
        return next((verdict for verdict in verdicts if verdict.kind == self.finding.kind), None)

    def _keep(self, verdict, setting=None):
        if verdict is not None:
            self.found = verdict.setting or setting, verdict.kind, verdict.detail
        return verdict is not None

    def _as_run(self, blob, program):
        """As the lane ran it: what a first setting has taught may be what the second one stumbles over."""
        self.renew()
        return self._keep(self._ask("run", blob, self.finding.seed))

    def _settings(self, blob, program):
        """In pieces: a process that is gone tells which piece it was."""
        finding = self.finding
        settings = (finding.before if finding.setting else []) + sweep(finding.kind, finding.setting, program.steps)
        if finding.before:
            self.renew()
        return any(self._keep(self._ask("probe", blob, settings[i:i + 20], True), settings[i]) for i in range(0, len(settings), 20))

    def renew(self):
        """A process that has learned nothing yet."""
        if self.under_koila:
            self.under_koila.end()
        self.under_koila = None

    def end(self):
        self.plain.end()
        self.renew()


def without(program, section, i):
    """The program without a statement: what it made is put together from what there was, or its users go as well."""
    statements = list(getattr(program, section))
    gone = statements.pop(i)
    candidate = dataclasses.replace(program, **{section: statements})
    lost = [name for name in gone.defines if not any(name in s.defines for s in candidate.setup + candidate.step)]
    for name in lost:
        candidate = _instead(candidate, name)
    return candidate


def _instead(program, name):
    shape = program.shapes.get(name)
    there = [other for s in program.setup + program.step for other in s.defines if program.shapes.get(other) == shape and other[0] in ("h", "x") and other != name] if shape else []
    first_use = next((i for i, s in enumerate(program.step) if name in s.uses), None)
    if first_use is None:
        return dataclasses.replace(program, setup=[s for s in program.setup if name not in s.uses])
    made = {other for s in program.step[:first_use] for other in s.defines}
    fit = [other for other in there if other in made]
    if fit:
        return dataclasses.replace(program, step=[s.renamed(name, fit[-1]) for s in program.step])
    users = [s for s in program.step if name in s.uses]
    program = dataclasses.replace(program, step=[s for s in program.step if name not in s.uses], setup=[s for s in program.setup if name not in s.uses])
    for s in users:
        for other in s.defines:
            if not any(other in t.defines for t in program.step):
                program = _instead(program, other)
    return program


def simpler(program):
    """Smaller programs, the boldest first."""
    half = len(program.step) // 2
    for begin in range(0, len(program.step), max(1, half // 2)):
        if half > 3:
            candidate = program
            for i in reversed(range(begin, min(begin + half // 2, len(program.step)))):
                if i < len(candidate.step):
                    candidate = without(candidate, "step", i)
            yield candidate
    for i in reversed(range(len(program.step))):
        yield without(program, "step", i)
    for i in reversed(range(len(program.setup))):
        yield without(program, "setup", i)
    if program.steps > 1:
        yield dataclasses.replace(program, steps=program.steps - 1)
    for i, statement in enumerate(program.step):
        lines = statement.text.split("\n") if "\n" in statement.text else statement.text.split("; ")
        if len(lines) > 1 and not any(line.startswith(" ") for line in lines):
            for j in range(len(lines)):
                yield dataclasses.replace(program, step=program.step[:i] + [dataclasses.replace(statement, text="\n".join(lines[:j] + lines[j + 1:]))] + program.step[i + 1:])
    for i, statement in enumerate(program.setup):
        if statement.text.startswith("o0 =") and "lr=0.05)" not in statement.text:
            yield dataclasses.replace(program, setup=program.setup[:i] + [dataclasses.replace(statement, text="o0 = torch.optim.SGD(trained, lr=0.05)")] + program.setup[i + 1:])


def shrunk(program, judge, seconds=SECONDS):
    until = time.monotonic() + seconds
    seen = set()
    progress = True
    while progress and time.monotonic() < until:
        progress = False
        for candidate in simpler(program):
            if time.monotonic() >= until:
                break
            text = candidate.source()
            if text in seen or len(text) >= len(program.source()):
                continue
            seen.add(text)
            if judge.fails(candidate):
                program, progress = candidate, True
                break
    return program


def command(environment, setting, kind):
    variables = dict(environment)
    if setting and setting.inject:
        variables["KOILA_INJECT_OOM"] = setting.inject
    text = " ".join(f"{name}={value}" for name, value in sorted(variables.items()))
    return f"LD_PRELOAD=libkoila.so {text} python SCRIPT  # {kind}; {setting}"


def keep(findings, folder, shrinking, say):
    """Writes each finding into the folder: the program as found, and the smallest one that fails likewise."""
    folder.mkdir(parents=True, exist_ok=True)
    for finding in findings:
        path = folder / f"{finding.seed}-{finding.kind.split(':')[0]}"
        say(f"{path.name}:")
        program = pickle.loads(finding.blob[0])
        (path.with_suffix(".pickle")).write_bytes(pickle.dumps(finding))
        judge = Judge(finding)
        try:
            if not judge.fails(program):
                say(f"{path.name}: not found again by itself; it followed {len(finding.history) - 1} other programs in its process")
                path.with_suffix(".json").write_text(json.dumps({"history": finding.history, "environment": finding.environment, "setting": str(finding.setting)}))
                continue
            small = shrunk(program, judge) if shrinking else program
            judge.fails(small)
            setting, kind, detail = judge.found
            path.with_suffix(".py").write_text(small.script(f"{kind}: {detail}".replace('"', "'"), command(finding.environment, setting, kind)))
            path.with_suffix(".small").write_bytes(pickle.dumps((small, finding.environment, kind, setting)))
            say(f"{path}.py: {len(small.step)} statements, {kind}, {setting}, {json.dumps(finding.environment)}: {detail[:200]}")
        finally:
            judge.end()
