"""koila's C ABI (include/koila/koila.h) in Python."""

import contextlib
import ctypes
import json
import os
import tempfile

CPU = -1  # every other number is a CUDA device's
REFUSAL = 2  # KOILA_EVENT_REFUSAL


class Event(ctypes.Structure):
    """The beginning of a koila_event."""

    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("device", ctypes.c_int), ("phase", ctypes.c_int), ("op", ctypes.c_char_p), ("reason", ctypes.c_char_p)]


LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Event))


class Koila:
    """The figures and limits of one device. Without the preload figures and reports are None, and a limit is an error."""

    def __init__(self, device=CPU):
        self.device = device
        library = ctypes.CDLL(None)
        self.library = library if hasattr(library, "koila_version") else None
        if self.library:
            for name in ("koila_live_bytes", "koila_peak_bytes", "koila_allocations"):
                getattr(library, name).restype = ctypes.c_int64
            library.koila_set_budget.argtypes = [ctypes.c_int, ctypes.c_int64]
            library.koila_set_inject.argtypes = [ctypes.c_char_p]
            library.koila_write_report.argtypes = [ctypes.c_char_p]
            library.koila_add_listener.argtypes, library.koila_add_listener.restype = [ctypes.c_int, LISTENER, ctypes.c_void_p], ctypes.c_uint64
            library.koila_remove_listener.argtypes = [ctypes.c_uint64]

    def live(self):
        return self.library and self.library.koila_live_bytes(self.device)

    def peak(self):
        return self.library and self.library.koila_peak_bytes(self.device)

    def allocations(self):
        return self.library and self.library.koila_allocations(self.device)

    def reset_peak(self):
        if self.library:
            self.library.koila_reset_peak(self.device)

    def limit(self, budget, inject=None):
        """The budget in bytes, and a KOILA_INJECT_OOM value, from now on; 0 and None: none."""
        if not self.library:
            if budget or inject:
                raise RuntimeError("limits need koila")
            return
        if self.library.koila_set_budget(self.device, budget or 0) != 0:
            raise RuntimeError(f"koila takes no budget for device {self.device}")
        self.inject(inject)

    def inject(self, what):
        """A KOILA_INJECT_OOM value, from now on; None: no more faults."""
        if self.library.koila_set_inject((what or "").encode()) != 0:
            raise RuntimeError(f"koila_set_inject({what})")

    @contextlib.contextmanager
    def refusals(self):
        """A list of the reasons of what is refused within; complete when it is left."""
        reasons = []
        listener = LISTENER(lambda _, event: reasons.append(event.contents.reason.decode()))
        number = self.library.koila_add_listener(REFUSAL, listener, None)
        try:
            yield reasons
        finally:
            if number:
                self.library.koila_remove_listener(number)

    def report(self):
        """What the report says by now."""
        if not self.library:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            if self.library.koila_write_report(path.encode()) != 0:
                return None
            with open(path) as file:
                return json.load(file)
