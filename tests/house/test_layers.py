"""Which part includes which. Arrows point one way: shim -> runtime <- torchglue, and a header never includes one that leads back to it."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PARTS = ("shim", "runtime", "torchglue", "tool")
MAY_INCLUDE = {"runtime": set(), "shim": {"runtime"}, "torchglue": {"runtime"}, "tool": {"runtime"}}

# Folders of torchglue whose files need nothing of a step: they may be read, and tested, by themselves.
LEAVES = {"placement": {"op_traits.h", "tensor_memory.h", "tls.h"}}


def included(file):
    return [name for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.M) if name.split("/")[0] in PARTS]


FILES = {str(file.relative_to(ROOT)): included(file) for part in PARTS for file in sorted((ROOT / part).rglob("*")) if file.suffix in (".h", ".cc")}


def test_parts():
    against = [f"{file} includes {name}" for file, names in FILES.items() for name in names
               if name.split("/")[0] != file.split("/")[0] and name.split("/")[0] not in MAY_INCLUDE[file.split("/")[0]]]
    assert not against, against


def test_no_header_leads_back_to_itself():
    def behind(header):
        found, left = set(), list(FILES.get(header, []))
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += FILES.get(name, [])
        return found

    circles = [header for header in FILES if header.endswith(".h") and header in behind(header)]
    assert not circles, circles


def test_leaves():
    """A leaf includes itself, the runtime, and what is named here of the folder above."""
    against = [f"{file} includes {name}" for leaf, more in LEAVES.items() for file, names in FILES.items() if file.startswith(f"torchglue/{leaf}/") for name in names
               if not name.startswith(("runtime/", f"torchglue/{leaf}/")) and name not in {f"torchglue/{header}" for header in more}]
    assert not against, against


def test_runtime_knows_no_torch():
    """The runtime, the shim and the command are C++ without torch: a program that never imports it pays nothing."""
    against = [file for file in FILES if not file.startswith("torchglue/") and re.search(r"^#include <(torch|ATen|c10)/", (ROOT / file).read_text(), re.M)]
    assert not against, against
