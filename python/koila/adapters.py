"""Which adapters for torch lie beside libkoila.so, and which of them this Python's torch takes: as runtime/adapters.cc has it."""

import re
import warnings
from importlib.util import find_spec
from pathlib import Path


def _release(version):
    return version.split("+")[0]


def _order(version):
    return [int(part) if part.isdigit() else 0 for part in re.split(r"[.+]", version)]


def versions_in(folder):
    """The version of torch that each adapter in the folder was built for, the oldest first."""
    found = []
    for place in [folder, *folder.glob("torch-*")]:
        version = place / "libkoila_torch.version"
        if version.is_file() and (place / "libkoila_torch.so").is_file():
            found += version.read_text().split()[:1]
    return sorted(found, key=_order)


def running_torch():
    """The version of this Python's torch, which is not imported for it; None: it has none, "": it does not say."""
    spec = find_spec("torch")
    if spec is None or not spec.origin:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"^__version__\b[^=\n]*= *['\"]([^'\"]*)", text, re.M)
    return found[1] if found else ""


def _and(words):
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def version_taken(folder):
    """The version that the adapter is built for which this Python's torch takes. None where none is taken, with a warning that says why."""
    versions, running = versions_in(folder), running_torch()
    fitting = [version for version in versions if running and _release(version) == _release(running)]
    if fitting:
        return running if running in fitting else fitting[0]
    if not versions:
        why = f"there is no adapter for torch in {folder}"
    else:
        has = "has no torch" if running is None else f"has torch {running or 'of unknown version'}"
        why = f"this Python {has}, and koila was built for torch {_and(versions)}"
    warnings.warn(f"{why} (docs/install.md)", RuntimeWarning, stacklevel=3)
    return None
