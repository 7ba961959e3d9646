"""The measuring tool of scripts/suites: what a made-up suite does wrong is found, and what it does right is not."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import compare
import suites_table
from catalogue import SUITES, Suite

HERE = Path(__file__).resolve().parent
MADE_UP = '''
import os
import pytest
import torch

SPOILED = os.environ.get("SPOILED")


def train(factor=1.0, steps=2):
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        loss = (net(torch.randn(4, 3)) * factor).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_right():
    train()


def test_by_a_little():
    train(1.001 if SPOILED else 1.0)


def test_outcome():
    train()
    assert not SPOILED


def test_one_step_less():
    train(steps=1 if SPOILED else 2)


def test_memory():
    train()
    if SPOILED:
        raise torch.OutOfMemoryError("CPU out of memory.")


def test_crash():
    train()
    if SPOILED:
        os.abort()


def test_endless():
    train()
    while SPOILED:
        pass


def test_by_itself():
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    train()


def test_rubbish():
    net = torch.nn.Linear(3, 2)
    net.weight = torch.nn.Parameter(torch.empty(2, 3))
    net(torch.randn(4, 3)).square().mean().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()


def test_grad():
    x = torch.randn(4, requires_grad=True)
    torch.autograd.grad(((2 if SPOILED else 1) * x).sum(), x)


def test_skipped():
    pytest.skip("by itself")
'''


def run(folder, **environment):
    """The records of the made-up suite's tests, by name and way."""
    (folder / "test_made_up.py").write_text(MADE_UP)
    outs = {name: folder / f"{name}{len(environment)}.jsonl" for name in ("plain", "again", "stirred")}
    runs = [{"out": str(out), "stir": 1e-6 if name == "stirred" else None, "fill": name == "again"} for name, out in outs.items()]
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "koila_suite_plugin", "-p", "no:cacheprovider", "-c", str(HERE / "pytest.ini"), "--rootdir", str(folder), "-q", "test_made_up.py"], cwd=folder,
                          env=os.environ | {"PYTHONPATH": str(HERE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "SUITES_RUNS": json.dumps(runs), "SUITES_PATIENCE": "4", **environment},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    found = {name: {r["test"].partition("::test_")[2]: r for r in map(json.loads, out.read_text().splitlines())} for name, out in outs.items()}
    assert found["plain"], done.stdout
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    return run(folder), run(folder, SPOILED="1")


def test_what_is_right_is_equal(runs):
    found, _ = runs
    for name, record in found["plain"].items():
        if name not in ("by_itself", "rubbish", "skipped"):
            assert compare.same_bits(record, found["again"][name]) is None
            assert compare.equal(record, found["again"][name], found["stirred"][name]) == ("equal", "")
    assert [r["kind"] for r in found["plain"]["right"]["records"]] == ["backward", "step"] * 2
    assert [r["kind"] for r in found["plain"]["grad"]["records"]] == ["grad"]


def test_what_is_wrong_is_found(runs):
    found, spoiled = runs
    for name, part in {"by_a_little": "backward 0: roots", "outcome": "failed (AssertionError", "one_step_less": "2 passes and steps, plain 4", "crash": "crash (SIGABRT", "endless": "timeout", "grad": "roots"}.items():
        verdict, why = compare.equal(found["plain"][name], spoiled["plain"][name], found["stirred"][name])
        assert verdict == "violation" and part in why, (name, why)
    assert compare.same_bits(found["plain"]["by_a_little"], spoiled["plain"]["by_a_little"])
    assert compare.same_bits(found["plain"]["right"], spoiled["plain"]["right"]) is None


def test_an_error_of_memory_is_none_of_koilas(runs):
    found, spoiled = runs
    assert suites_table.judge("faults", found["plain"]["memory"], spoiled["plain"]["memory"], None)[0] == "out of memory"
    assert suites_table.judge("preload", found["plain"]["memory"], spoiled["plain"]["memory"], None)[0] == "violation"


def test_what_is_not_the_same_twice_is_left_out(runs):
    found, spoiled = runs
    suite = Suite("made up", "1")
    summary = suites_table.Summary(suite, {**found, "faults": spoiled["plain"]}, ("faults",))
    # What lies in fresh memory may be the same by chance in the first two runs, where the C library does not fill it, and another thing in the third.
    assert summary.left_out["skipped by itself"] == 1 and summary.left_out["not the same twice"] in (1, 2)
    assert {name for _, name, _ in summary.violations} - {"rubbish"} == {"by_a_little", "outcome", "one_step_less", "crash", "grad"}
    assert summary.counts["faults"]["out of memory"] == 1
    assert f"{len(summary.violations)} violations" in suites_table.markdown([summary], ("faults",), "today")


def test_rounding_and_other_draws_are_no_violations(runs):
    found, _ = runs
    plain = found["plain"]["right"]
    # In the order of leaves, and within rounding.
    other = copy.deepcopy(plain)
    for record in other["records"]:
        for what in ("roots", "leaves"):
            for leaf in record.get(what, []):
                leaf[2] += 1
                leaf[3] *= 1 + 1e-6
        record["leaves"].reverse()
    assert compare.equal(plain, other) == ("equal", "")
    assert compare.same_bits(plain, other)
    # Another mask of a dropout, after which the generator is elsewhere.
    other["records"][0]["leaves"][0][3] *= 2
    assert compare.equal(plain, other)[0] == "violation"
    other["records"][0]["random"] += 1
    assert compare.equal(plain, other)[0] == "other draws"
    # A NaN where there was a number, and one gradient less.
    other = copy.deepcopy(plain)
    other["records"][0]["leaves"][0][3] = float("nan")
    assert compare.equal(plain, other)[0] == "violation"
    other = copy.deepcopy(plain)
    other["records"][0]["leaves"].pop()
    assert "one is missing" in compare.equal(plain, other)[1]


def test_the_catalogue_is_pinned():
    for suite in SUITES.values():
        assert all("==" in need for need in suite.needs), suite.name
        for test in suite.tests:
            assert not test.startswith("programs/") or (HERE / test).exists()
