"""A value that cannot be made again is taken as it is, with the graph that it has: what this graph has saved is there when backward comes."""

import subprocess
import sys

import pytest

from harness import HERE, clean_environment, koila_environment


@pytest.mark.parametrize("ladder", ["1", "0,1"])
def test_what_the_old_graph_has_saved_is_there(ladder):
    environment = clean_environment(koila_environment("rescue", KOILA_LADDER=ladder, KOILA_LOG="off"))
    done = subprocess.run([sys.executable, str(HERE / "graph_steps.py")], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    found = dict(line.split("\t") for line in done.stdout.splitlines())
    assert len(found) > 100, done.stderr[-2000:]
    wrong = {name: what for name, what in found.items() if what not in ("equal", "out of memory")}
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong}"
    # What joins a region may still be split.
    assert found["tanh, then linear"] == "equal"
