"""Messages of koila's that the pages quote are in its sources, and the tests that docs/limits.md names are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = re.sub(r'"\s*\n?\s*"', "", "".join(path.read_text() for folder in ("torchglue", "runtime", "shim", "tool") for path in sorted((ROOT / folder).rglob("*"))
                                          if path.suffix in (".cc", ".h")))


def quotes():
    """What stands in the first column of the tables of docs/troubleshooting.md, and after `koila: `."""
    found = []
    for line in (ROOT / "docs" / "troubleshooting.md").read_text().splitlines():
        cells = line.split("|")
        if len(cells) > 2 and (quoted := re.fullmatch(r"\s*`(.+?)`\s*", cells[1])):
            found.append(quoted[1])
        found += [quoted for quoted in re.findall(r"`koila: ([^`]+)`", line)]
    return found


def test_there_are_quotes():
    assert len(quotes()) >= 6


@pytest.mark.parametrize("quote", quotes())
def test_a_quoted_message_is_one_of_koilas(quote):
    for part in re.split(r"\.\.\.|: ", quote):
        assert part.strip() in SOURCES, f"no source says {part.strip()!r}"


def rows_of_support():
    """(what, verdict, what shows it) of the table in docs/limits.md."""
    section = (ROOT / "docs" / "limits.md").read_text().split("## What it works with")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")]
    return [tuple(row) for row in rows if row[0] != "with"]


def test_there_is_a_table_of_support():
    assert len(rows_of_support()) > 20


@pytest.mark.parametrize("what, verdict, shown_by", rows_of_support(), ids=lambda text: text[:30])
def test_what_is_claimed_is_shown(what, verdict, shown_by):
    named = re.findall(r"`([^`]+)`", shown_by)
    assert bool(named) or verdict == "untested", "a claim without a test"
    for name in named:
        path, _, part = name.partition("::")
        assert (ROOT / path).is_file(), path
        assert not part or re.search(rf"\b{part}\b", (ROOT / path).read_text()), f"{path} has no {part}"
