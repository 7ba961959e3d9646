"""A process of the fuzzer: makes programs and runs them plain, or runs them under koila and compares.

Requests and answers are pickles with their length in front, on the descriptors that stdin and stdout had at the start.

    ("make", seed)                  -> a blob, which is (program, plain values) as pickles, or the reason why there is none
    ("run", blob, choice seed)      -> a Verdict for each setting that was tried
    ("probe", blob, settings, first) -> the same for given settings; `first`: ends with the first one that is wrong
"""

import contextlib
import dataclasses
import gc
import os
import pickle
import random
import signal
import struct
import sys
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "lib")]

import reached  # noqa: E402
import torch  # noqa: E402
from fuzz_compare import Reference  # noqa: E402
from generate import generate, outcome, plain_values  # noqa: E402
from koila_abi import CPU, Koila  # noqa: E402
from notes import Notes  # noqa: E402
from verdict import Setting, Verdict  # noqa: E402


# A limit that nothing reaches. Without any, a failure that is injected is one of memory of which nobody knows how much there is, and the steps after it stay split whatever program they belong to.
PLENTY = 1 << 40


class Case:
    """A program to run, and what it has to leave."""

    def __init__(self, blob):
        self.program, values = map(pickle.loads, blob)
        self.function = self.program.compiled()
        self.reference = Reference(values, self.program.precision)

    def differences(self, values, **how):
        """Those beyond the tolerance, in words; and those below it."""
        found = self.reference.differences(values, **how)
        beyond = [pair for pair in found if pair[0] > self.program.precision.tolerance]
        return in_words(beyond), in_words(found)


def in_words(differences):
    return "; ".join(f"{key} {far:.2g}" for far, key in differences[:8])


@dataclasses.dataclass
class Run:
    notes: Notes
    ended: object  # "ok" or an exception
    peak: int  # the most that the steps held beyond what was there before the program
    over: int  # by how much it went over its budget
    allocations: int
    refusals: list  # reasons


class Runner:
    """Runs programs under koila in this process."""

    def __init__(self, device):
        self.koila = Koila(device)
        self.where = "" if device == CPU else f"cuda:{device}:"  # allocations there fail
        self.always_splits = bool(os.environ.get("KOILA_MICROBATCH")) or os.environ.get("KOILA_MODE") == "lazy"
        self.free = bool(os.environ.get("KOILA_FUZZ_FREE"))  # no limits in this process, and so not a bit may differ
        self.fresh = bool(os.environ.get("KOILA_FUZZ_FRESH"))  # each setting in a child: what one has taught koila may keep the next one from what the first step goes through

    def run(self, case, setting):
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
                koila.limit(base + setting.bytes if setting.bytes else PLENTY, setting.inject and self.where + setting.inject)

        limited = False
        notes = Notes(begin)
        with koila.refusals() as refusals:
            ended = outcome(case.function, notes)
        notes.retaining = notes.kept = []  # a hook that notes its gradient holds the notes: with a hooked tensor in them PyTorch itself would keep both for ever
        measure()
        koila.limit(0)
        if isinstance(ended, Exception):
            self.trace = [frame for frame in traceback.extract_tb(ended.__traceback__) if frame.name == "program"]
            ended = ended.with_traceback(None)
            ended.__context__ = ended.__cause__ = None
        return Run(notes, ended, peak, over, koila.allocations() - before, refusals)

    def judge(self, case, setting):
        live = self.koila.live()
        run = self.run(case, setting)
        verdict = self._verdict(case, setting, run)
        if self.fresh:
            return verdict  # the ledger of a child counts what it frees of its parent's in another way
        if not verdict.bad and run.over > 0:
            verdict = Verdict(setting, "over", f"by {run.over} of {setting.bytes} bytes")
        del run
        if self.koila.live() > live:
            gc.collect()
        if self.koila.live() > live:
            small_step()  # what is kept of a step goes when the next one begins
        if not verdict.bad and self.koila.live() > live:
            verdict = Verdict(setting, "leak", f"{self.koila.live() - live} bytes")
        return verdict

    def judged(self, case, setting):
        return in_child(lambda: self._judged_twice(case, setting), setting) if self.fresh else self._judged_twice(case, setting)

    def _judged_twice(self, case, setting):
        """What is made once and kept, such as a cache, is no leak."""
        verdict = self.judge(case, setting)
        return verdict if verdict.kind != "leak" else self.judge(case, setting)

    def _verdict(self, case, setting, run):
        limited = self.always_splits or setting.budget or setting.inject
        if run.ended == "ok":
            wrong, changed = case.differences(run.notes.values)
            if wrong:
                return Verdict(setting, "wrong", wrong)
            if self.free and changed:
                return Verdict(setting, "changed", changed)
            return Verdict(setting, "exact")
        text = str(run.ended)
        if not limited or not isinstance(run.ended, torch.OutOfMemoryError):
            return Verdict(setting, "error", f"line {self.trace[-1].lineno if self.trace else '?'}: {type(run.ended).__name__}: {text[:300]}")
        wrong, _ = case.differences(run.notes.values, all_of_them=False)
        if wrong:
            return Verdict(setting, "wrong", f"before the refusal: {wrong}")
        # What runs exactly without the check may not be refused by it.
        alarms = [reason for reason in run.refusals if reason.startswith("a check found it wrong")]
        if alarms:
            return Verdict(setting, "alarm", alarms[-1][:300])
        return Verdict(setting, "refused", text.split("\n")[0][:200])

    def settings(self, program, peak, allocations, choices):
        """Some ways to run it."""
        begin = choices.randrange(program.steps)
        budgets = [Setting(budget=choices.uniform(0.3, 0.99), begin=choices.choice((0, 0, begin))) for _ in range(2)]
        faults = [Setting(inject=f"nth:{choices.randrange(1, max(2, allocations // (program.steps if begin else 1)))}", begin=begin)]
        if choices.randrange(2):
            faults.append(Setting(inject=f"random:{choices.choice((0.01, 0.03, 0.1))}:{choices.randrange(10**6)}", begin=begin))
        return budgets + faults

    def all(self, blob, choices):
        case, free = Case(blob), Setting()
        run = self.run(case, free)
        verdicts = [self._verdict(case, free, run)]
        peak, allocations = run.peak, run.allocations
        del run
        if self.free:
            return verdicts
        for setting in self.settings(case.program, peak, allocations, choices):
            setting.bytes = int(setting.budget * peak)
            verdicts.append(self.judged(case, setting))
        return verdicts

    def probe(self, blob, settings, first):
        case = Case(blob)
        peak = self.run(case, Setting()).peak
        verdicts = []
        for setting in settings:
            setting.bytes = int(setting.budget * peak)
            verdicts.append(self.judged(case, setting))
            if first and verdicts[-1].bad:
                break
        return verdicts


def in_child(judged, setting):
    """The verdict of a forked process, which ends with it."""
    answer, given = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            with os.fdopen(given, "wb") as out:
                pickle.dump(judged(), out)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(given)
    with os.fdopen(answer, "rb") as read_from:
        data = read_from.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGALRM:
        return Verdict(setting, "hang")
    return pickle.loads(data) if status == 0 else Verdict(setting, "crash", f"signal {-status}" if status < 0 else f"exit status {status}")


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
def simulated_cuda():
    sys.path.append(str(HERE.parent / "cuda" / "device"))
    import sim_cuda
    with sim_cuda.cuda_by_default():
        yield


def make(seed):
    program, values = generate(seed)
    if program and os.environ.get("KOILA_FUZZ_TABLE"):
        program.reached = reached.by(program.compiled(), Notes())
    return (pickle.dumps(program), pickle.dumps(values)) if program else values


def again(program):
    """A program that was changed: with its plain values, or the reason why it has none."""
    values = plain_values(program)
    return values if isinstance(values, str) else (pickle.dumps(program), pickle.dumps(values))


def seed_at_once():
    """Without a device, torch.manual_seed keeps a call, and the stack it came from, for the day when there is one: more than most steps take."""
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.manual_seed_all = lambda seed: None


def main():
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0).zero_grad()  # imports what an optimizer wants
    on_cuda = os.environ.get("KOILA_FUZZ_DEVICE") == "cuda"
    if not on_cuda:
        seed_at_once()
    with simulated_cuda() if on_cuda else contextlib.nullcontext():
        runner = Runner(0 if on_cuda else CPU) if Koila().library else None
        gc.collect()
        gc.freeze()  # what torch has made need not be looked at again
        asked = 0
        while (request := read(requests)) is not None:
            name, *rest = request
            asked += 1
            if asked in (2, 20):  # by now torch has imported and made what it does at first use
                gc.collect()
                gc.freeze()
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
