"""A pytest plugin that runs every test of somebody else's suite in a child process of its own and writes down what it did: the outcome, and for every
backward pass and optimizer step the numbers that it left.

It is given to pytest by suites_run.py (-p koila_suite_plugin), which holds the files of two runs against each other (compare.py). Values are read through NumPy,
so that reading them allocates nothing of torch's. Variables, all set by suites_run.py:

    SUITES_RUNS      a JSON list of the ways in which each test is run: "out", a file of JSON lines, one a test (what it has is not run again); "stir", relative
                     noise that is added to every gradient: how much a test makes of rounding; "faults", the value of KOILA_INJECT_OOM for a test by name, in
                     force from its first call of a module on, or with nth from its beginning
    SUITES_TESTS     a file of names, one a line: no others are run
    SUITES_PATIENCE  seconds of the processor's for a test, or a JSON file of them by name
    SUITES_SECONDS   after which no further test is begun; they begin with the first test
    SUITES_DROPOUT   keep: dropout draws; else its probability is zero, since micro-batches draw other masks
    SUITES_DTYPE     the default type of floating point numbers
    SUITES_PREPARE   names of preparations (below) that a suite needs to be importable
"""

import ctypes
import functools
import gc
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import weakref
import zlib

import numpy
import pytest
import torch
import torch.utils.checkpoint
from torch.optim.optimizer import register_optimizer_step_post_hook

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lib"))

from koila_abi import Koila  # noqa: E402

MOST = 60  # backward passes and steps of a test that are written down
LOG = 3000  # characters of what a test that does not pass has printed

# ---- what a tensor comes to -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def weights(size):
    places = numpy.arange(size, dtype=numpy.float64)
    return numpy.cos(places * 1.3 + 0.7), numpy.sin(places * places * 0.37 + places)


def array_of(tensor):
    """A NumPy array of its values that costs torch no memory where it can be had so."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return (tensor.view(torch.int16).numpy().view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    return tensor.numpy()


def digest(tensor):
    """[type, shape, checksum of the bytes, the 2-norm, two dot products]; the last three in float64, None where they are no numbers."""
    if tensor is None:
        return None
    kind = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    try:
        array = numpy.ascontiguousarray(array_of(tensor))
    except Exception as error:
        return [*kind, "out of memory" if ran_out(error) else f"unreadable: {type(error).__name__}"]
    checksum = zlib.crc32(array.tobytes())
    if array.dtype.kind not in "fc":
        return [*kind, checksum, None, None, None]
    flat = array.reshape(-1)
    flat = (flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat).astype(numpy.float64)
    first, second = weights(flat.size)
    with numpy.errstate(all="ignore"):
        return [*kind, checksum, float(numpy.sqrt(flat @ flat)), float(flat @ first), float(flat @ second)]


def leaves_of(roots):
    """The leaves that a backward pass from these would reach, in no particular order."""
    found, seen = [], set()
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    found += [root for root in roots if root.grad_fn is None and root.requires_grad]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)
        nodes += [n for n, _ in node.next_functions if n is not None and n not in seen]
    return found


def ran_out(error):
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "out of memory" in str(error) or "can't allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


# ---- writing it down --------------------------------------------------------------------------------------------------------------


class Book:
    """What the test under way has done."""

    def __init__(self):
        self.records, self.depth, self.first, self.last, self.passes, self.fault, self.stir = [], 0, None, 0, 0, None, None
        self.koila = Koila()
        self.met = {}  # weak references by id
        self.before = self.allocations()

    def allocations(self):
        return self.koila.allocations() or 0

    def so_far(self):
        return self.allocations() - self.before

    def meet(self, leaves):
        for leaf in leaves:
            if self.met.get(id(leaf), lambda: None)() is not leaf:
                self.met[id(leaf)] = weakref.ref(leaf)

    def leaves(self):
        """All that a pass has reached so far and that are still there: which of them this very pass reaches may be another thing in a step that is split."""
        return [leaf for leaf in (reference() for reference in self.met.values()) if leaf is not None]

    def inject(self, what):
        if self.koila.library and what:
            self.koila.inject(what)

    def add(self, kind, **values):
        if len(self.records) < MOST:
            state = zlib.crc32(torch.get_rng_state().numpy().tobytes())
            self.records.append({"kind": kind, "random": state, **{name: [digest(t) for t in tensors] for name, tensors in values.items()}})

    def figures(self):
        """(regions that ran in micro-batches, rescues, reasons of refusals) by koila's own report."""
        report = self.koila.report()
        if report is None:
            return None
        rescued = sum(event["count"] for event in report.get("oom_events", []) if event["outcome"] == "rescued")
        return [report.get("regions_total", {}).get("count", 0), rescued, [r["reason"] for r in report.get("refusals", [])][:5]]


book = None


def tensors_of(what):
    if isinstance(what, torch.Tensor):
        return [what]
    return [t for t in what if isinstance(t, torch.Tensor)] if isinstance(what, (list, tuple)) else []


def stir(tensors):
    """Noise of the size of rounding on gradients."""
    share = book.stir
    for tensor in tensors if share else ():
        if tensor is not None and tensor.layout == torch.strided and tensor.dtype in (torch.float32, torch.float64) and tensor.numel():
            values = tensor.detach().numpy()
            draw = numpy.random.RandomState(values.size % 1000003).standard_normal(values.shape)
            size = share * (1 if tensor.dtype == torch.float32 else 1e-8)
            values += (size * float(numpy.sqrt(numpy.mean(numpy.square(values, dtype=numpy.float64)))) * draw).astype(values.dtype)


def outermost(function):
    """Calls within a call (a checkpoint's own backward pass) are part of it."""
    def watched(*args, **kwargs):
        if book is None or book.depth or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return around(function, *args, **kwargs)

    def around(function, *args, **kwargs):
        book.depth += 1
        try:
            return watch(function, *args, **kwargs)
        finally:
            book.depth -= 1
            book.passes += 1
            book.last = book.so_far()

    if function.__name__ == "grad":
        def watch(function, *args, **kwargs):
            result = function(*args, **kwargs)
            stir(result)
            if not kwargs.get("create_graph"):
                book.add("grad", roots=tensors_of(kwargs.get("outputs", args[0] if args else ())), leaves=list(result))
            return result
    else:
        def watch(function, *args, **kwargs):
            roots = tensors_of(kwargs.get("tensors", args[0] if args else ()))
            book.meet(leaves_of(roots))
            function(*args, **kwargs)
            gradients = [leaf.grad for leaf in book.leaves() if leaf.grad is not None]
            stir(gradients)
            book.add("backward", roots=roots, leaves=gradients)
    return functools.wraps(function)(watched)


def stepped(optimizer, args, kwargs):
    if book is not None:
        book.add("step", leaves=[p for group in optimizer.param_groups for p in group["params"]])


def first_module_call():
    """From the first call of a module on there are faults: not in what builds it. The hook is gone after the first."""
    plain = torch.nn.Module.__call__

    def call(self, *args, **kwargs):
        if book is not None and not isinstance(self, torch.jit.ScriptModule):
            torch.nn.Module.__call__ = plain
            book.first = book.so_far()
            book.inject(book.fault)
        return plain(self, *args, **kwargs)

    torch.nn.Module.__call__ = call


def without_dropout():
    functional = torch.nn.functional

    def never(function):
        @functools.wraps(function)
        def call(input, p=0.5, training=True, inplace=False):
            return function(input, p if not 0 <= p <= 1 else 0.0, training, inplace)
        return call

    for name in ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"):
        setattr(functional, name, never(getattr(functional, name)))
    attention = functional.scaled_dot_product_attention

    def attend(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)
    functional.scaled_dot_product_attention = functools.wraps(attention)(attend)


# ---- preparations ---------------------------------------------------------------------------------------------------------------------


def torchvision():
    """torchvision beside a torch of another build: its compiled operators do not load, and its models only want these declared."""
    for name in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:
            pass


def seeds():
    """Generators that nobody has seeded begin the same: gymnasium's take theirs from the system."""
    plain = numpy.random.SeedSequence
    numpy.random.SeedSequence = lambda entropy=None, **more: plain(0 if entropy is None else entropy, **more)


PREPARATIONS = {f.__name__: f for f in (torchvision, seeds)}


# ---- pytest ---------------------------------------------------------------------------------------------------------------------------


def variable(name, default=None):
    return os.environ.get(f"SUITES_{name}", default)


class Run:
    """One way in which each test is run."""

    def __init__(self, out, stir=None, faults=None, fill=False):
        self.stir, self.fill = stir, fill
        self.faults = json.load(open(faults)) if faults else {}
        self.out = open(out, "a")
        with open(out) as file:
            self.done = {json.loads(line)["test"]: json.loads(line)["outcome"] for line in file}

    def write(self, record):
        self.done[record["test"]] = record["outcome"]
        self.out.write(json.dumps(record) + "\n")
        self.out.flush()


def pytest_configure(config):
    global runs, wanted, patience
    torch.set_num_threads(1)
    if variable("DTYPE"):
        torch.set_default_dtype(getattr(torch, variable("DTYPE")))
    torch.autograd.backward = outermost(torch.autograd.backward)
    torch.autograd.grad = outermost(torch.autograd.grad)
    register_optimizer_step_post_hook(stepped)
    if variable("DROPOUT") != "keep":
        without_dropout()
    runs = [Run(**fields) for fields in json.loads(variable("RUNS"))]
    wanted = None
    if variable("TESTS"):
        with open(variable("TESTS")) as file:
            wanted = set(file.read().split("\n"))
    patience = variable("PATIENCE", "20")
    if not patience.isdigit():
        with open(patience) as file:
            patience = json.load(file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    items[:] = [item for item in items if any(item.nodeid not in run.done for run in runs) and (wanted is None or item.nodeid in wanted)]
    # In an order of no meaning: where there is no time for all, those that ran are a sample.
    items.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
    # An optimizer's first call imports a second's worth of modules: not in every child.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0).zero_grad()
    # What is there already is not looked at by a child's collections, which would copy its pages.
    gc.collect()
    gc.freeze()
    global until
    until = time.monotonic() + float(variable("SECONDS", "inf"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if time.monotonic() > until:
        item.session.shouldstop = "no time left"
        return True
    for run in runs:
        if item.nodeid not in run.done:
            run.write({"test": item.nodeid, **in_a_child(item, run)})
        if run.done[item.nodeid] not in ("passed", "failed") and not run.faults:
            break  # no use in a second time
    return True


def in_a_child(item, run):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    before = before.ru_utime + before.ru_stime
    reader, writer = os.pipe()
    log = tempfile.TemporaryFile()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        status = 0
        try:
            result = run_here(item, run)
            with os.fdopen(writer, "w") as file:
                file.write(json.dumps(result))
        except BaseException:
            traceback.print_exc()
            status = 3
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    limit = patience.get(item.nodeid, 60) if isinstance(patience, dict) else int(patience)
    text, timed_out = read_all(reader, child, limit)
    if timed_out:
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    log.seek(0)
    printed = log.read().decode(errors="replace")[-LOG:]
    log.close()
    if timed_out:
        record = {"outcome": "timeout", "error": f"after {limit} s"}
    elif text:
        record = json.loads(text)
    else:
        signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        record = {"outcome": "crash", "error": signal.Signals(signalled).name if signalled else f"exit {os.waitstatus_to_exitcode(status)}"}
    if record["outcome"] not in ("passed", "skipped"):
        record["log"] = printed
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {**record, "seconds": round(used.ru_utime + used.ru_stime - before, 3)}


def seconds_of(process):
    """Of processor time, which is no matter of what else the machine does."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_all(reader, child, limit):
    """(text, whether the time is over before the other end was closed): `limit` seconds of the processor's, and some more of the clock's for one that waits."""
    parts, until = [], time.monotonic() + 20 * limit + 60
    while True:
        if not select.select([reader], [], [], 0.5)[0]:
            if time.monotonic() > until or seconds_of(child) > limit:
                return "", True
            continue
        part = os.read(reader, 1 << 20)
        if not part:
            return b"".join(parts).decode(), False
        parts.append(part)


def run_here(item, run):
    """Within the child."""
    global book
    from _pytest.runner import runtestprotocol
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    if run.fill:
        ctypes.CDLL(None).mallopt(-6, 0x5A)  # M_PERTURB
    errors = []

    class Errors:
        @staticmethod
        def pytest_runtest_makereport(item, call):
            if call.excinfo is not None:
                errors.append(call.excinfo.value)

    item.config.pluginmanager.register(Errors)
    book = Book()
    book.fault, book.stir = run.faults.get(item.nodeid), run.stir
    first_module_call()
    if book.fault and book.fault.startswith("nth:"):
        book.inject(book.fault)
        book.fault = None
    reports = runtestprotocol(item, log=False, nextitem=None)
    requests = book.so_far()
    book.inject("nth:1000000000000")
    outcome, error = "passed", ""
    for report in reports:
        if report.failed and outcome != "failed":
            outcome = "failed"
        elif report.skipped and outcome == "passed":
            outcome = "skipped"
    if outcome == "failed":
        first = errors[0] if errors else None
        outcome = "oom" if any(ran_out(e) for e in errors) else "failed"
        error = f"{type(first).__name__}: {first}"[:600]
        print(*(report.longreprtext for report in reports if report.failed))
    elif outcome == "skipped":
        error = str(errors[0])[:200] if errors else ""
    return {"outcome": outcome, "error": error, "records": book.records, "passes": book.passes, "requests": requests, "first": book.first, "last": book.last,
            "figures": book.figures()}


for name in filter(None, variable("PREPARE", "").split(",")):
    PREPARATIONS[name]()
