"""One place decides what becomes of an operator: plan/decide.cc. Nothing else asks an operator's rule, or makes a constant by the row."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# They ask how what they look at would be split, and decide about no call.
OTHERS = {
    "lazy/metadata.cc": "how the view of a marked tensor is split",
    "rescue/guess.cc": "whether a dimension may be the batch",
}


def test_rules_are_asked_in_one_place():
    asking = set()
    for path in sorted((ROOT / "torchglue").rglob("*.cc")):
        name = str(path.relative_to(ROOT / "torchglue"))
        code = re.sub(r"//.*", "", path.read_text())
        if not name.startswith("placement/") and re.search(r"(?<![\w.:>])ask\([^;]*\brule\b|\bcreate_split\(", code):
            asking.add(name)
    assert asking == {"plan/decide.cc", *OTHERS}
