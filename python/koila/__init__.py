"""koila from Python: attaches to this process, where it was started without, and tells what it knows.

A program that `koila run -- python train.py` starts need not import this. Where no variable can be set (a notebook, a worker of somebody else's launcher), `import koila`,
before torch or after it, loads the library and attaches; `KOILA_MODE=off` keeps it out. `koila.loaded()` tells whether it is here; without it `koila.memory()` is None, and
`koila.report()`, `koila.budget()` and `koila.events()` raise RuntimeError.
"""

from importlib import metadata
from pathlib import Path

from koila.adapters import version_taken as _version_taken
from koila.attach import attach as _attach

_folder = Path(__file__).resolve().parent


def _libraries():
    """The folder of libkoila.so: in the package, or where a clone has built it."""
    in_package, in_clone = _folder / "lib", _folder.parents[1] / "build" / "lib"
    return in_clone if not in_package.exists() and in_clone.exists() else in_package


def library():
    """The path of libkoila.so, for LD_PRELOAD. The adapters for torch lie beside it."""
    return str(_libraries() / "libkoila.so")


def include():
    """The folder for -I that makes <koila/koila.h> and <koila/rule.h> known."""
    return str(_folder / "include")


def torch_version():
    """The version of torch that the adapter was built for which this Python's torch takes; None: it takes none, and a warning says why."""
    return _version_taken(_libraries())


_attach(library())  # before live.py looks for the library's functions

from koila.live import Event, Memory, Report, budget, events, loaded, memory, report, set_budget  # noqa: E402

__all__ = ["Event", "Memory", "Report", "budget", "events", "include", "library", "loaded", "memory", "report", "set_budget", "torch_version"]

try:
    __version__ = metadata.version("libkoila")
except metadata.PackageNotFoundError:  # in the repository, by PYTHONPATH
    __version__ = "0+source"
