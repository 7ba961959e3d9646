"""koila from Python: where its files lie, and in a program that runs under it what it knows.

A program that koila keeps alive need not import this: `koila run -- python train.py` preloads the library. One that does import it runs without koila too:
`koila.loaded()` tells, `koila.memory()` is None then, and `koila.report()`, `koila.budget()` and `koila.events()` raise RuntimeError.
"""

from importlib import metadata
from pathlib import Path

from koila.live import Event, Memory, budget, events, loaded, memory, report

__all__ = ["Event", "Memory", "budget", "events", "include", "library", "loaded", "memory", "report", "torch_version"]

try:
    __version__ = metadata.version("libkoila")
except metadata.PackageNotFoundError:  # in the repository, by PYTHONPATH
    __version__ = "0+source"

_folder = Path(__file__).resolve().parent


def library():
    """The path of libkoila.so, for LD_PRELOAD. The adapter for torch lies beside it."""
    return str(_folder / "lib" / "libkoila.so")


def include():
    """The folder for -I that makes <koila/koila.h> and <koila/rule.h> known."""
    return str(_folder / "include")


def torch_version():
    """The version of torch that the adapter was built for; None: it was built without."""
    try:
        return (_folder / "lib" / "libkoila_torch.version").read_text().strip()
    except FileNotFoundError:
        return None
