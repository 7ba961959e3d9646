"""Where koila's files lie. A program that koila keeps alive need not import this: `koila run -- python train.py` preloads the library."""

from importlib import metadata
from pathlib import Path

__version__ = metadata.version("koila")

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
