"""Two modules of one name are one module to a process that runs both folders' tests: which of the two depends on the order of the tests."""

import collections
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
# conftest.py is loaded by its path.


def test_module_names_are_given_once():
    where = collections.defaultdict(list)
    for path in sorted(TESTS.rglob("*.py")):
        if path.name not in ("conftest.py", "__init__.py"):
            where[path.stem].append(str(path.relative_to(TESTS)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}
