"""A process of the fuzzer: makes programs and runs them plain, or runs them under koila and compares.

Requests and answers are pickles with their length in front, on the descriptors that stdin and stdout had at the start.

    ("make", seed)                  -> a blob, which is (program, plain values) as pickles, or the reason why there is none
    ("run", blob, choice seed)      -> a Verdict for each setting that was tried
    ("probe", blob, settings, first) -> the same for given settings; `first`: ends with the first one that is wrong
"""

import contextlib
import gc
import os
import pickle
import random
import struct
import sys
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "lib")]

import torch  # noqa: E402
from generate import differences, generate, outcome, plain_values  # noqa: E402
from koila_abi import Koila  # noqa: E402
from notes import Notes  # noqa: E402
from verdict import Setting, Verdict  # noqa: E402

TOLERANCE = 3e-8


class Runner:
    """Runs programs under koila in this process."""

    def __init__(self):
        self.koila = Koila()
        self.always_splits = bool(os.environ.get("KOILA_MICROBATCH")) or os.environ.get("KOILA_MODE") == "lazy"
        self.alarms = 0
        self.free = bool(os.environ.get("KOILA_FUZZ_FREE"))  # no limits in this process, and so not a bit may differ

    def run(self, program, setting):
        """(notes, how it ended, the most that the steps held beyond what was there before the program, by how much it went over its budget, allocations)."""
        koila = self.koila
        base, before = koila.live(), koila.allocations()
        peak = over = 0
        there = None

        def measure():
            nonlocal peak, over, there
            if there is None:
                return
            held = koila.peak()
            peak = max(peak, held - base)
            if setting.bytes and limited:
                over = max(over, held - max(base + setting.bytes, there))
            there = None

        def begin(step):
            nonlocal there, limited
            if step is None:
                measure()
                koila.limit(0)
                return
            limited = step >= setting.begin
            koila.reset_peak()
            there = koila.live()
            if limited:
                koila.limit(base + setting.bytes if setting.bytes else 0, setting.inject or None)

        limited = False
        notes = Notes(begin)
        ended = outcome(program, notes)
        measure()
        koila.limit(0)
        if isinstance(ended, Exception):
            self.trace = [frame for frame in traceback.extract_tb(ended.__traceback__) if frame.name == "program"]
            ended = ended.with_traceback(None)
            ended.__context__ = ended.__cause__ = None
        return notes, ended, peak, over, koila.allocations() - before

    def judge(self, program, values, setting):
        live = self.koila.live()
        notes, ended, _, over, _ = self.run(program, setting)
        verdict = self._verdict(program, values, setting, notes, ended)
        if not verdict.bad and over > 0:
            verdict = Verdict(setting, "over", f"by {over} of {setting.bytes} bytes")
        del notes, ended
        if self.koila.live() > live:
            gc.collect()
        if self.koila.live() > live:
            small_step()  # what is kept of a step goes when the next one begins
        if not verdict.bad and self.koila.live() > live:
            verdict = Verdict(setting, "leak", f"{self.koila.live() - live} bytes")
        return verdict

    def _judged_twice(self, program, values, setting):
        """What is made once and kept, such as a cache, is no leak."""
        verdict = self.judge(program, values, setting)
        return verdict if verdict.kind != "leak" else self.judge(program, values, setting)

    def _verdict(self, program, values, setting, notes, ended):
        limited = self.always_splits or setting.budget or setting.inject
        if ended == "ok":
            worst = differences(values, notes.values)
            if worst and worst[0][0] > TOLERANCE:
                return Verdict(setting, "wrong", "; ".join(f"{key} {far:.2g}" for far, key in worst[:8] if far > TOLERANCE))
            if self.free and worst and worst[0][0] > 0:
                return Verdict(setting, "changed", "; ".join(f"{key} {far:.2g}" for far, key in worst[:8] if far > 0))
            return Verdict(setting, "exact")
        if not limited or not isinstance(ended, torch.OutOfMemoryError):
            return Verdict(setting, "error", f"line {self.trace[-1].lineno if self.trace else '?'}: {type(ended).__name__}: {str(ended)[:300]}")
        worst = differences(values, notes.values, all_of_them=False)
        if worst and worst[0][0] > TOLERANCE:
            return Verdict(setting, "wrong", "before the refusal: " + "; ".join(f"{key} {far:.2g}" for far, key in worst[:8] if far > TOLERANCE))
        alarms = self._alarms()
        if len(alarms) > self.alarms:
            self.alarms = len(alarms)
            return Verdict(setting, "alarm", alarms[-1][:300])
        return Verdict(setting, "refused", str(ended).split("\n")[0][:200])

    def _alarms(self):
        """Refusals of the check at run time. What runs exactly without the check may not be refused by it."""
        return [refusal["reason"] for refusal in self.koila.report().get("refusals", []) if refusal["reason"].startswith("a check found it wrong")]

    def settings(self, program, peak, allocations, choices):
        """Some ways to run it."""
        begin = choices.randrange(program.steps)
        budgets = [Setting(budget=choices.uniform(0.3, 0.99), begin=choices.choice((0, 0, begin))) for _ in range(2)]
        faults = [Setting(inject=f"nth:{choices.randrange(1, max(2, allocations // (program.steps if begin else 1)))}", begin=begin)]
        if choices.randrange(2):
            faults.append(Setting(inject=f"random:{choices.choice((0.01, 0.03, 0.1))}:{choices.randrange(10**6)}", begin=begin))
        return budgets + faults

    def all(self, blob, choices):
        program, values = map(pickle.loads, blob)
        free = Setting()
        notes, ended, peak, _, allocations = self.run(program, free)
        verdicts = [self._verdict(program, values, free, notes, ended)]
        del notes, ended
        if self.free:
            return verdicts
        for setting in self.settings(program, peak, allocations, choices):
            setting.bytes = int(setting.budget * peak)
            verdicts.append(self._judged_twice(program, values, setting))
        return verdicts

    def probe(self, blob, settings, first):
        program, values = map(pickle.loads, blob)
        _, _, peak, _, _ = self.run(program, Setting())
        verdicts = []
        for setting in settings:
            setting.bytes = int(setting.budget * peak)
            verdicts.append(self._judged_twice(program, values, setting))
            if first and verdicts[-1].bad:
                break
        return verdicts


def small_step():
    weight = torch.ones(1, requires_grad=True)
    (weight * 1).backward()


def read(stream):
    head = stream.read(8)
    if len(head) < 8:
        return None
    return pickle.loads(stream.read(struct.unpack("<q", head)[0]))


def write(stream, value):
    data = pickle.dumps(value)
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


@contextlib.contextmanager
def device():
    if os.environ.get("KOILA_FUZZ_DEVICE") != "cuda":
        yield
        return
    sys.path.append(str(HERE.parent / "cuda" / "device"))
    import sim_cuda
    with sim_cuda.cuda_by_default():
        yield


def make(seed):
    program, values = generate(seed)
    return (pickle.dumps(program), pickle.dumps(values)) if program else values


def again(program):
    """A program that was changed: with its plain values, or the reason why it has none."""
    values = plain_values(program)
    return values if isinstance(values, str) else (pickle.dumps(program), pickle.dumps(values))


def main():
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0).zero_grad()  # imports what an optimizer wants
    runner = Runner() if Koila().library else None
    gc.collect()
    gc.freeze()  # what torch has made need not be looked at again
    with device():
        while (request := read(requests)) is not None:
            name, *rest = request
            if name == "make":
                write(answers, make(*rest))
            elif name == "again":
                write(answers, again(*rest))
            elif name == "run":
                write(answers, runner.all(rest[0], random.Random(rest[1])))
            else:
                write(answers, runner.probe(*rest))


if __name__ == "__main__":
    main()
