"""Programs of other people's shape train, exactly, between 60 and 90% of plain's peak without memory from outside: see unseen.py, adapters.py, packed.py, parts_of_rows.py, twice.py, own_functions.py, functions_by_rows.py, functions_with_rules.py, hooks_inside.py and gone_by_then.py."""

import json
import subprocess
import sys

import pytest

import adapters
import functions_by_rows
import functions_with_rules
import gone_by_then
import hooks_inside
import own_functions
import packed
import parts_of_rows
import twice
import unseen
from harness import HERE, clean_environment, koila_environment

PROGRAMS = {module.__name__: module.PROGRAMS for module in (unseen, adapters, packed, parts_of_rows, twice, own_functions, functions_by_rows, functions_with_rules, hooks_inside, gone_by_then)}


@pytest.mark.parametrize("file, name", [(file, name) for file, programs in PROGRAMS.items() for name in programs])
def test_every_budget_trains(file, name):
    rules = {"KOILA_RULES": str(HERE / "functions.rules")} if file == "functions_with_rules" else {}
    environment = clean_environment(koila_environment("rescue", KOILA_LADDER="0,1", KOILA_LOG="off", **rules))
    said = subprocess.run([sys.executable, HERE / f"{file}.py", name], env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout
    assert json.loads(said.splitlines()[-1])[name] == ["exact"] * len(PROGRAMS[file].shares_of(name))
