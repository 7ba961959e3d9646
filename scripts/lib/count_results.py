"""Sums up JUnit XML files: `count_results.py FOLDER` prints "N passed, N failed", and fails if any test did or if there was none.

For each NAME.expected in the folder there must be a NAME.xml; a missing or broken one is a failure (the program crashed).
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count(file: pathlib.Path) -> tuple[int, int, int]:
    """Tests passed, failed and skipped."""
    try:
        root = ElementTree.parse(file).getroot()
    except (OSError, ElementTree.ParseError):
        print(f"{file.stem}: no results; it crashed")
        return 0, 1, 0
    passed = failed = skipped = 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(folder: str) -> int:
    counts = [count(file.with_suffix(".xml")) for file in sorted(pathlib.Path(folder).glob("*.expected"))]
    passed, failed, skipped = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0)
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
