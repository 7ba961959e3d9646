"""What koila knows in this process, by the C functions of include/koila/koila.h. Needs nothing but Python."""

import atexit
import contextlib
import ctypes
import dataclasses
import html
import json
import os
import re
import tempfile

_CATEGORIES = 16
_KINDS = {"rescue": 1, "refusal": 2, "step": 4}
_PHASES = ("forward", "backward", "no_grad")
_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4} | {
    letter + tail: 1024**power for power, letter in enumerate("KMGT", 1) for tail in ("", "IB")}


class _Figures(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_int64) for name in (
        "live_bytes", "peak_bytes", "run_peak_bytes", "reserved_bytes", "reserved_peak_bytes", "budget_bytes", "outside_bytes", "outside_peak_bytes")] + [
        ("by_category", ctypes.c_int64 * _CATEGORIES), ("allocations", ctypes.c_int64)]


class _Event(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("device", ctypes.c_int), ("phase", ctypes.c_int), ("op", ctypes.c_char_p),
                ("reason", ctypes.c_char_p)] + [(name, ctypes.c_int64) for name in (
                    "requested_bytes", "live_bytes", "peak_bytes", "budget_bytes", "micro_batch", "batch", "step", "rescues", "lost")]


_LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Event))


@dataclasses.dataclass(frozen=True)
class Memory:
    """A device in bytes, but for the last field. docs/report.md says what the categories are."""

    device: str
    live: int            # of tensors
    peak: int            # the highest of that since the last koila_reset_peak (C, C++)
    run_peak: int        # and of the whole run
    reserved: int        # what the device gave, with what PyTorch's allocator keeps for later; on the CPU the same as live
    reserved_peak: int
    budget: int          # in force; 0: none
    outside: int         # of the device's tensors, kept by koila outside its memory
    outside_peak: int
    by_category: dict
    allocations: int     # so far


@dataclasses.dataclass(frozen=True)
class Event:
    """What happened. Bytes and rows are 0 where they are unknown."""

    kind: str             # "rescue", "refusal" or "step"
    device: str           # of a step: whose tensors took most
    phase: str            # "forward", "backward" or "no_grad"
    op: str               # that ran out, such as "aten::linear"; "" of a step
    reason: str           # of a refusal; else ""
    requested_bytes: int
    live_bytes: int       # when it ran out; at the end of the step
    peak_bytes: int       # of a step: the most within it
    budget_bytes: int     # 0: none
    micro_batch: int      # rows; 0 where nothing was split
    batch: int
    step: int             # the number of a step that ended, from 1; of an out-of-memory, steps that had ended by then
    rescues: int          # of a step: how many there were in it
    lost: int             # events before this one that nobody was told of


_SIGNATURES = {
    "koila_memory": (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Figures)),
    "koila_category_name": (ctypes.c_char_p, ctypes.c_int),
    "koila_set_budget": (ctypes.c_int, ctypes.c_int, ctypes.c_int64),
    "koila_begin_budget": (ctypes.c_uint64, ctypes.c_int, ctypes.c_int64),
    "koila_end_budget": (None, ctypes.c_uint64),
    "koila_add_listener": (ctypes.c_uint64, ctypes.c_int, _LISTENER, ctypes.c_void_p),
    "koila_remove_listener": (None, ctypes.c_uint64),
    "koila_write_report": (ctypes.c_int, ctypes.c_char_p),
}


def _find():
    """koila's functions, where they are in this process; else None."""
    process = ctypes.CDLL(None)
    try:
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(process, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError:
        return None
    return process


_koila = _find()


def loaded():
    """Whether libkoila.so is in this process. It may still stay out of it (KOILA_MODE=off, another torch): then memory() is None."""
    return _koila is not None


def _need(what):
    if _koila is None:
        raise RuntimeError(f"koila.{what}: koila is not in this process (KOILA_MODE=off, or a warning of `import koila` says why)")
    return _koila


def _number(device):
    name = str(device)
    if name == "cpu":
        return -1
    found = re.fullmatch(r"cuda(?::(\d+))?", name)
    if found is None:
        raise ValueError(f"koila knows the devices 'cpu' and 'cuda:N', not {name!r}")
    return int(found[1] or 0)


def _name(number):
    return "cpu" if number == -1 else f"cuda:{number}"


def _bytes(size):
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", size)
    unit = found[2].upper() if found else None
    if unit not in _UNITS:
        raise ValueError(f"koila: {size!r} is no size: want a number of bytes, or a number with one of B, K, M, G, T, KiB, MiB, GiB, TiB, KB, MB, GB, TB")
    return int(float(found[1]) * _UNITS[unit])


def memory(device="cpu"):
    """A Memory of that device ("cpu", "cuda:0", or a torch.device); None where koila does not count there."""
    number = _number(device)
    figures = _Figures(size=ctypes.sizeof(_Figures))
    if _koila is None or _koila.koila_memory(number, figures) != 0:
        return None
    named = {_koila.koila_category_name(c).decode(): figures.by_category[c] for c in range(_CATEGORIES)}
    by_category = {name: size for name, size in named.items() if size or name != "other"}
    by_category["other"] = sum(figures.by_category) - sum(size for name, size in by_category.items() if name != "other")
    return Memory(_name(number), figures.live_bytes, figures.peak_bytes, figures.run_peak_bytes, figures.reserved_bytes, figures.reserved_peak_bytes,
                  figures.budget_bytes, figures.outside_bytes, figures.outside_peak_bytes, by_category, figures.allocations)


class Report(dict):
    """The report of a run so far (docs/report.schema.json). The last value of a notebook's cell is shown as the page."""

    def __init__(self, figures, page):
        super().__init__(figures)
        self._page = page

    def _repr_html_(self):
        # A page of its own: its styles are not the notebook's.
        return f'<iframe srcdoc="{html.escape(self._page)}" style="width: 100%; height: 640px; border: 0"></iframe>'


def _write_report(path):
    if _need("report()").koila_write_report(os.fsencode(path)) != 0:
        raise RuntimeError(f"koila.report({str(path)!r}): nothing was written; want .txt, .json, .html, .csv or .pickle in a folder that can be written to, "
                           "and a koila that does not stay out of the process")


def report(path=None):
    """The report of the run so far: a dictionary, which a notebook shows as a page; with a path it is written there, in the form of its suffix."""
    if path is not None:
        return _write_report(path)
    with tempfile.TemporaryDirectory(prefix="koila-") as folder:
        texts = []
        for form in ("json", "html"):
            file = os.path.join(folder, "report." + form)
            _write_report(file.replace("%", "%%"))
            with open(file, encoding="utf-8") as opened:
                texts.append(opened.read())
        return Report(json.loads(texts[0]), texts[1])


@contextlib.contextmanager
def budget(size, device="cpu"):
    """Within the `with` block, no more than that of memory on the device: bytes, or a text such as "80M" or "1.5GiB". Of several the smallest holds."""
    koila, wanted = _need("budget()"), _bytes(size)
    if wanted < 1:
        raise ValueError(f"koila.budget: {size!r} is less than a byte")
    number = koila.koila_begin_budget(_number(device), wanted)
    if number == 0:
        raise RuntimeError(f"koila.budget: koila does not count on {device}")
    try:
        yield
    finally:
        koila.koila_end_budget(number)


def set_budget(size, device="cpu"):
    """From now on no more than that of memory on the device, in place of KOILA_CPU_MEMORY or KOILA_DEVICE_MEMORY; None: no budget."""
    koila, wanted = _need("set_budget()"), 0 if size is None else _bytes(size)
    if size is not None and wanted < 1:
        raise ValueError(f"koila.set_budget: {size!r} is less than a byte")
    if koila.koila_set_budget(_number(device), wanted) != 0:
        raise RuntimeError(f"koila.set_budget: koila does not count on {device}")


class events:
    """Calls `function` with each Event, on a thread of koila's own, until close() or the end of the `with` block. The program does not wait for it: by then
    it has gone on. Kinds: "rescue", "refusal", "step".

        with koila.events(lambda event: print(event.step, event.live_bytes), "step"):
            train()
    """

    def __init__(self, function, *kinds):
        unknown = set(kinds) - set(_KINDS)
        if unknown:
            raise ValueError(f"koila.events: no kind {sorted(unknown)}; want some of {list(_KINDS)}")
        self._call = _LISTENER(lambda _context, event: function(_event_of(event.contents)))
        koila = _need("events()")
        self._number = koila.koila_add_listener(sum(_KINDS[kind] for kind in kinds or _KINDS), self._call, None)
        if self._number == 0:
            raise RuntimeError("koila.events: koila stays out of this process")
        atexit.register(self.close)  # no call may come when Python is gone

    def close(self):
        """What happened before is still told; then no more."""
        if self._number:
            number, self._number = self._number, 0
            _koila.koila_remove_listener(number)
            atexit.unregister(self.close)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()


def _event_of(told):
    kind = next(name for name, number in _KINDS.items() if number == told.kind)
    return Event(kind, _name(told.device), _PHASES[told.phase], told.op.decode(errors="replace"), told.reason.decode(errors="replace"), told.requested_bytes,
                 told.live_bytes, told.peak_bytes, told.budget_bytes, told.micro_batch, told.batch, told.step, told.rescues, told.lost)
