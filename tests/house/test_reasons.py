"""Every reason of a refusal in the sources has something to do about it (runtime/report/remedy.cc)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Sentences of the sources that are no reason of a refusal.
OTHERS = (
    "you need to backward through",  # PyTorch's own error
    "koila::lazy", "on the program's first thread", "that the program holds",  # errors of the C++ API
    "KOILA_MICROBATCH: a step ran whole",  # a note
    "what was handed out has its value", "backward reaches the parameters that", "gives other values in micro-batches",  # parts of "a check found it wrong"
    "the rule does not hold", "gives a result that is no tensor", "Its placement rule is one", "Please report this",
    "are in use.", "takes no observers", "spill file", "are not of one build", "has no torch::autograd",
)
REASON = re.compile(r'"((?:[^"\\]|\\.){16,})"')
TELLS = re.compile(r"(\.$)|(^it happened)")


def reasons():
    found = set()
    for path in sorted((ROOT / "torchglue").rglob("*")):
        if path.suffix not in (".cc", ".h") or "placement" in path.parts:
            continue
        for line in path.read_text().splitlines():
            code = line.split("//")[0] if line.lstrip().startswith("//") else line
            if "log(" in code or "TORCH_WARN" in code:
                continue
            found |= {text for text in REASON.findall(code) if TELLS.search(text) and " " in text.strip()}
    return sorted(text for text in found if not any(other in text for other in OTHERS))


def remedies():
    table = (ROOT / "runtime" / "report" / "remedy.cc").read_text()
    return re.findall(r'^    \{"((?:[^"\\]|\\.)*)",', table, re.MULTILINE)


def test_there_are_reasons():
    assert len(reasons()) > 40 and len(remedies()) > 30


@pytest.mark.parametrize("reason", reasons())
def test_every_reason_has_a_remedy(reason):
    assert any(words in reason for words in remedies()), reason


@pytest.mark.parametrize("words", remedies())
def test_every_remedy_has_a_reason(words):
    text = "".join(path.read_text() for path in (ROOT / "torchglue").rglob("*") if path.suffix in (".cc", ".h"))
    assert words in text, f"no reason says {words!r}"
