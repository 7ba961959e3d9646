"""koila in a process that was started without it: a notebook, a debugger, a worker of somebody else's launcher."""

import ctypes
import os
import warnings


def attach(library):
    """Loads the library, unless it is here already or KOILA_MODE=off; it attaches to torch, now or when torch is imported. Never raises."""
    if os.environ.get("KOILA_MODE", "").strip().lower() == "off" or hasattr(ctypes.CDLL(None), "koila_version"):
        return
    if not os.path.exists(library):
        warnings.warn(f"koila does nothing in this process: there is no {library}; koila is not built, or not installed whole (docs/install.md)", stacklevel=3)
        return
    try:
        # For all that is loaded from now on, as a preload is; and with Python's lock held, so that no other thread of Python's trains meanwhile.
        ctypes.PyDLL(library, mode=ctypes.RTLD_GLOBAL).koila_attach()
    except (OSError, AttributeError) as error:
        warnings.warn(f"koila does nothing in this process: {error}", stacklevel=3)
