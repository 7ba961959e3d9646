"""The list of faults keeps up with the sources. What finds them is measured by scripts/mutants, and takes far longer than a test."""

import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from mutants import MUTANTS, Mutant, mutated  # noqa: E402


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_text_occurs_once(mutant):
    source = (ROOT / mutant.file).read_text()
    changed = mutated(source, mutant)
    assert changed != source
    assert mutant.wrong.endswith(".")


def test_names_are_given_once():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 30
    assert all(re.fullmatch("[a-z_]+", name) for name in names)


@pytest.mark.parametrize("source", ("", "a fault here, and a fault there"))
def test_a_text_that_does_not_occur_once_is_an_error(source):
    with pytest.raises(SystemExit, match="has to once"):
        mutated(source, Mutant("name", "file", "a fault", "none", "It is wrong."))
