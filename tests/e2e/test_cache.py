"""KOILA_CACHE: a process begins with what others have learned, and whatever is wrong with the file costs what was learned and nothing else."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from harness import clean_environment, koila_environment
from selection import full, in_full, only

SCRIPT = textwrap.dedent("""
    import sys, torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, steps, rows = (int(a) for a in sys.argv[1:])
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        x, y = torch.rand(rows, 64, dtype=torch.float64), torch.randint(10, (rows,))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
    print(sum(p.abs().sum().item() for p in model.parameters()))
""")
ARGUMENTS = ("64", "6", "1024")


def start(cache=None, arguments=ARGUMENTS, **more):
    environment = {"OMP_NUM_THREADS": "1"}
    if cache is not None:
        environment |= koila_environment("rescue", **{"KOILA_CPU_MEMORY": "2500KiB", "KOILA_CACHE": str(cache)} | more)
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], env=clean_environment(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return [float(line) for line in out.split()], err


@pytest.fixture(scope="module")
def plain():
    return finish(start())[0]


def run(tmp_path, plain, cache, **more):
    """The figures of the report, once the results have been compared."""
    report = tmp_path / "report.json"
    report.unlink(missing_ok=True)
    found, err = finish(start(cache, KOILA_REPORT=str(report), **more))
    assert found == pytest.approx(plain, rel=1e-9)
    return json.loads(report.read_text()), err


def test_the_second_process_is_not_rescued(tmp_path, plain):
    cache = tmp_path / "sizes.json"
    first, _ = run(tmp_path, plain, cache)
    assert first["rescues"] > 0
    second, _ = run(tmp_path, plain, cache)
    assert second["rescues"] == 0 and second["regions_total"]["count"] >= 6


def test_a_known_size_that_does_not_fit_is_made_smaller(tmp_path, plain):
    cache = tmp_path / "sizes.json"
    run(tmp_path, plain, cache)
    found, _ = run(tmp_path, plain, cache, KOILA_CPU_MEMORY="1900KiB")
    assert found["refusals"] == [] and found["rescues"] <= 1


@pytest.mark.parametrize("content", [in_full(b""), b"{", in_full(b"not json at all"), in_full(b"[1, 2]"), b'{"koila_cache": 99}', in_full(b"\xff\xfe\x00" * 100), in_full(b"{" * 100000)],
                         ids=["empty", "cut", "text", "list", "newer", "bytes", "deep"])
def test_a_file_that_is_none_costs_one_line(tmp_path, plain, content):
    cache = tmp_path / "sizes.json"
    cache.write_bytes(content)
    found, err = run(tmp_path, plain, cache)
    assert found["rescues"] > 0
    lines = [line for line in err.splitlines() if str(cache) in line]
    if content:
        assert cache.read_bytes() == content, "somebody else's file was written to"
        assert len(lines) == 1, err
        assert [note for note in found["notes"] if str(cache) in note]
    else:
        assert not lines and json.loads(cache.read_text())["koila_cache"] == 1


@pytest.mark.parametrize("wrong", [{"rows": 512, "bytes": 1, "seconds": 0}, in_full({"rows": 3, "bytes": 10 ** 15, "seconds": 0})], ids=["too little", "too much"])
def test_what_is_false_in_it_changes_no_result(tmp_path, plain, wrong):
    cache = tmp_path / "sizes.json"
    run(tmp_path, plain, cache)
    content = json.loads(cache.read_text())
    for step in content["steps"]:
        step["observations"] = [wrong]
        step["choices"] = []
    cache.write_text(json.dumps(content))
    found, _ = run(tmp_path, plain, cache)
    assert found["refusals"] == []


def test_a_seed_that_is_none_changes_no_result(tmp_path, plain):
    cache = tmp_path / "sizes.json"
    run(tmp_path, plain, cache)
    content = json.loads(cache.read_text())
    for step in content["steps"]:
        for seed in step["seeds"]:
            seed["argument"], seed["dim"] = 1, 0  # the weight
    cache.write_text(json.dumps(content))
    process = start(cache)
    out, err = process.communicate()
    found = [float(line) for line in out.split()]
    assert found == pytest.approx(plain[:len(found)], rel=1e-9)
    assert process.returncode == 0 or "torch.OutOfMemoryError" in err


@pytest.mark.parametrize("path", only(["."], ["missing/folder/sizes.json", "."]))
def test_a_path_that_cannot_be_written(tmp_path, plain, path):
    found, err = run(tmp_path, plain, tmp_path / path)
    assert found["rescues"] > 0 and str(tmp_path / path) in err


@full
def test_many_processes_write_at_once(tmp_path):
    cache = tmp_path / "sizes.json"
    kinds = [(str(40 + 8 * kind), "3", "1024") for kind in range(4)]
    for process in [start(cache, kind, KOILA_CPU_MEMORY="1700KiB") for kind in kinds]:
        finish(process)
    steps = json.loads(cache.read_text())["steps"]
    assert len(steps) == len(kinds)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sizes.json", "sizes.json.lock"]


def test_a_killed_process_leaves_a_good_file(tmp_path, plain):
    cache = tmp_path / "sizes.json"
    run(tmp_path, plain, cache)
    for wait in (0.0, 0.02, 0.05):
        process = start(cache, ("64", "100000", "1024"))
        process.stdout.readline()
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert json.loads(cache.read_text())["koila_cache"] == 1
    assert run(tmp_path, plain, cache)[0]["rescues"] == 0
