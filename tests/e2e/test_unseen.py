"""Programs of other people's shape train, exactly, between 60 and 90% of plain's peak without memory from outside: see unseen.py."""

import json
import subprocess
import sys

import pytest

from harness import HERE, clean_environment, koila_environment
from unseen import PROGRAMS, SHARES, SHARES_OF


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_every_budget_trains(name):
    environment = clean_environment(koila_environment("rescue", KOILA_LADDER="0,1", KOILA_LOG="off"))
    said = subprocess.run([sys.executable, HERE / "unseen.py", name], env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout
    assert json.loads(said.splitlines()[-1])[name] == ["exact"] * len(SHARES_OF.get(name, SHARES))
