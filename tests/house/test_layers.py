"""Which part includes which. Arrows point one way: shim -> runtime <- torchglue, within torchglue from the top of LAYERS to its bottom, and no header leads back to itself."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PARTS = ("shim", "runtime", "torchglue", "tool")
MAY_INCLUDE = {"runtime": set(), "shim": {"runtime"}, "torchglue": {"runtime"}, "tool": {"runtime"}}

# The folders of torchglue from the bottom up: a folder may include those of the lines before its own, and its own. Folders on one line include one another.
LAYERS = [
    {"compat"},                 # what differs between releases of torch
    {"base"},                   # the thread's state, tensors' memory, graphs, the process
    {"oom"},                    # what counts as out of memory, and what is told of it
    {"placement"},              # how tensors are split, and a rule for each operator
    {"operators"},              # what an operator is
    {"statistics"},             # what is computed of every row
    {"memory"},                 # allocators
    {"tape"},                   # what the step has called
    {"plan"},                   # what could be split
    {"sizing"},                 # in how many rows
    {"step"},                   # the state of the step, and what may be done for it
    {"leaks"},
    {"facts"},
    # Two sides of one class: what is computed in micro-batches, and whether it is right; and what an optimizer computes a few elements at a time, which is deferred as well.
    {"region", "proof", "updates"},
    {"stages"},
    {"rescue"},
    {"top", "lazy"},            # operators come in, and are sent to one of the above; what becomes of them in a step that runs in micro-batches
    {"api"},
]

# What lies in torchglue itself belongs to the top, but for these.
LIES_IN = {"op_traits": "operators", "kept_arguments": "base"}

# Arrows that point up, one by one, and why they are still there.
EXCEPTIONS = {
    ("memory/cpu_allocator.cc", "step/session.h"): "the allocator asks the step's Offload whether what does not fit is served from outside",
    ("tape/tape.cc", "facts/facts.h"): "the tape tells when a forward pass begins; facts look at the tape",
    ("tape/collect.cc", "facts/facts.h"): "and what is forgotten",
    ("rescue/convert.cc", "rescue/eager.h"): "an operator of a conversion is made again as if the program called it",
    ("rescue/made_again.cc", "rescue/eager.h"): "so is what it reads that is not split",
}
# Files that lie in one folder and belong to another's layer.
BELONGS_TO = {"rescue/eager": "top", "rescue/rescued_call": "top"}


def included(file):
    return [name for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.M) if name.split("/")[0] in PARTS]


FILES = {str(file.relative_to(ROOT)): included(file) for part in PARTS for file in sorted((ROOT / part).rglob("*")) if file.suffix in (".h", ".cc")}


def folder(name):
    """The folder of a file of torchglue, as LAYERS have it."""
    inner = name.removeprefix("torchglue/")
    stem = inner.rsplit(".", 1)[0]
    if stem in BELONGS_TO:
        return BELONGS_TO[stem]
    return inner.split("/")[0] if "/" in inner else LIES_IN.get(stem, "top")


HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def arrows():
    return [(file, name) for file, names in FILES.items() if file.startswith("torchglue/") for name in names
            if name.startswith("torchglue/") and folder(file) != folder(name)]


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


def test_every_folder_has_a_layer():
    assert {folder(file) for file in FILES if file.startswith("torchglue/")} - {"pch"} == set(HEIGHT)


def test_arrows_point_down():
    """With an order of the folders, no circle of folders can be, but by an exception."""
    up = {(file.removeprefix("torchglue/"), name.removeprefix("torchglue/")) for file, name in arrows() if HEIGHT.get(folder(name), 99) > HEIGHT.get(folder(file), 99)}
    new = sorted(up - set(EXCEPTIONS))
    assert not new, [f"{file} includes {name}, which lies above it" for file, name in new]
    gone = sorted(set(EXCEPTIONS) - up)
    assert not gone, f"these are exceptions no longer: {gone}"


def test_runtime_knows_no_torch():
    """The runtime, the shim and the command are C++ without torch: a program that never imports it pays nothing."""
    against = [file for file in FILES if not file.startswith("torchglue/") and re.search(r"^#include <(torch|ATen|c10)/", (ROOT / file).read_text(), re.M)]
    assert not against, against
