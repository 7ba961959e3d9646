"""koila's C ABI (include/koila/koila.h) in Python."""

import ctypes
import json
import os
import tempfile

CPU = -1  # every other number is a CUDA device's


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
        if self.library.koila_set_inject((inject or "").encode()) != 0:
            raise RuntimeError(f"koila_set_inject({inject})")

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
