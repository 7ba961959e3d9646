"""The record of a run is what happened up to the moment at which the program ended, whatever ended it."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import LIBRARY, clean_environment
from selection import only

PROGRAM = str(Path(__file__).with_name("recorded.py"))
READER = LIBRARY.parents[1] / "tests" / "runtime" / "read_record"
BUDGET = 3 << 20


def environment(tmp_path, **more):
    return clean_environment({"LD_PRELOAD": str(LIBRARY), "KOILA_CPU_MEMORY": f"{BUDGET}B", "KOILA_REPORT": "off", "KOILA_LOG": "error", "TMPDIR": str(tmp_path)} | more)


def run(tmp_path, *arguments, **more):
    return subprocess.run([sys.executable, PROGRAM, *arguments], env=environment(tmp_path, **more), capture_output=True, text=True, timeout=600)


def read(path):
    return json.loads(subprocess.run([READER, str(path)], capture_output=True, text=True, check=True).stdout)


def folder(tmp_path):
    return tmp_path / f"koila-{os.geteuid()}"


def records(tmp_path):
    return sorted(folder(tmp_path).glob("*")) if folder(tmp_path).is_dir() else []


def assert_whole(record, steps, end="cut off"):
    """What the program told of is in the record, and nothing in it is torn. It may have been cut off between a step and the line about it."""
    assert (record["problem"], record.get("end")) == ("", end)
    assert steps <= record["steps"] <= steps + 1
    (cpu,) = record["devices"]
    assert cpu["device"] == -1 and cpu["budget"] == BUDGET
    assert BUDGET / 2 < cpu["peak"] <= BUDGET
    # Every step runs out of memory, and is rescued: one that is under way may have been, too. More than one rescue a step is no error.
    assert record["steps"] <= sum(e["count"] for e in record["events"]) in (record["rescues"], record["rescues"] + 1)
    assert record["refusals"] == 0
    for event in record["events"]:
        step = (event["batch"] - 4096) / 8
        assert re.fullmatch(r"aten::\w+|backward|a micro-batch", event["op"]) and event["reason"] == "" and event["outcome"] == 0, event
        assert 0 < event["micro_batch"] < event["batch"] and event["requested"] > 0 and event["step"] == step - 1, event
    ats = [event["at"] for event in record["events"]]
    assert ats == sorted(ats) and ats[0] > 0 and ats[-1] <= record["seconds"]
    numbers = [step["step"] for step in record["step_list"]]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) in (record["steps"] - 1, record["steps"])
    for step in record["step_list"]:
        assert 0 < step["live"] <= step["peak"] <= BUDGET and step["batch"] == 4096 + 8 * step["step"] and step["rescues"] > 0, step
    timeline = cpu["timeline"]
    assert timeline == sorted(timeline, key=lambda sample: sample[0]) and 0 < max(live for _, live in timeline) <= BUDGET
    assert timeline[-1][0] <= record["seconds"]


def kill_after(tmp_path, seconds):
    """Starts the program, kills it so long after its first step, and looks at what it left."""
    process = subprocess.Popen([sys.executable, PROGRAM, "exit", "0"], env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    first = process.stdout.readline()
    time.sleep(seconds)
    alive = read(folder(tmp_path) / f"{process.pid}.koila")
    assert alive["end"] == "running" and alive["pid"] == process.pid and alive["steps"] >= 1
    process.kill()
    steps = (first + process.stdout.read()).splitlines()
    process.wait()
    record = read(folder(tmp_path) / f"{process.pid}.koila")
    assert_whole(record, len(steps))
    assert record["pid"] == process.pid and "recorded.py exit 0" in record["command"] and record["torch"].startswith("2.")


@pytest.mark.parametrize("number", only(range(2), range(50)))
def test_killed_at_some_moment(tmp_path, number):
    kill_after(tmp_path, random.Random(number).uniform(0, 0.5))


def test_children_of_a_fork_have_records_of_their_own_and_leave_their_parents_alone(tmp_path):
    done = run(tmp_path, "forks", "50", KOILA_RECORD=str(tmp_path / "%p.koila"))
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    for pid, steps in ends["children"]:
        assert_whole(read(tmp_path / f"{pid}.koila"), steps)
    assert_whole(read(tmp_path / f"{ends['parent']}.koila"), 2, "exited")
    assert len(list(tmp_path.glob("*.koila"))) == 51, "none of the child that did nothing"
    assert not (tmp_path / f"{ends['idle']}.koila").exists()


@pytest.mark.parametrize("end", only(["exit", "segfault"], ["exit", "error", "_exit", "segfault", "abort", "terminated"]))
def test_what_stays_after_each_end(tmp_path, end):
    done = run(tmp_path, end)
    assert done.stdout.count("step") == 3, done.stderr
    expected = {"exit": 0, "error": 1, "_exit": 3, "segfault": -signal.SIGSEGV, "abort": -signal.SIGABRT, "terminated": -signal.SIGTERM}
    assert done.returncode == expected[end]
    found = records(tmp_path)
    if end in ("exit", "error"):
        assert found == [], "it had its exit handlers, and the report with them"
        return
    assert len(found) == 1
    assert_whole(read(found[0]), 3)
    assert found[0].stat().st_mode & 0o777 == 0o600 and folder(tmp_path).stat().st_mode & 0o777 == 0o700
    assert found[0].stat().st_blocks * 512 < 1 << 20, "most of it is holes"


def test_a_record_that_was_asked_for_stays(tmp_path):
    path = tmp_path / "run.koila"
    assert run(tmp_path, "exit", KOILA_RECORD=str(path)).returncode == 0
    assert_whole(read(path), 3, "exited")
    assert records(tmp_path) == []
    # Where it is a file of the user's, that stays.
    path.write_text("mine")
    done = run(tmp_path, "exit", KOILA_RECORD=str(path), KOILA_LOG="warn")
    assert done.returncode == 0 and path.read_text() == "mine"
    assert [line for line in done.stderr.splitlines() if "rescued" not in line] == [
        f"koila: no record of this run is kept (KOILA_RECORD): cannot write {path}: there is a file that is no record"]


def test_off_keeps_none(tmp_path):
    assert run(tmp_path, "killed", KOILA_RECORD="off").returncode == -signal.SIGKILL
    assert not folder(tmp_path).exists()


def test_programs_without_torch_leave_nothing(tmp_path):
    for command in (["bash", "-c", "echo a | cat; kill -9 $$"], [sys.executable, "-c", "import os, numpy; os._exit(0)"]):
        subprocess.run(command, env=environment(tmp_path), capture_output=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def mounted(path, size):
    """Whether a file system of so many bytes could be put there."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


def test_without_room_the_program_runs_as_ever(tmp_path):
    """A full disk, a limit on files, a folder that is somebody else's, or none that can be written: never a signal, and one line for who asks."""
    places = {"nowhere": "/proc", "limit of nothing": 1000, "limit": 2_300_000}
    mounts = []
    for size in ("32k", "160k"):
        if mounted(tmp_path / size, size):
            places[size] = str(tmp_path / size)
            mounts.append(tmp_path / size)
    for name in ("open", "link", "file", "foreign"):
        place = tmp_path / name
        place.mkdir()
        places[name] = str(place)
        if name == "link":
            (tmp_path / "target").mkdir(0o700)
            folder(place).symlink_to(tmp_path / "target")
        elif name == "file":
            folder(place).write_text("")
        else:
            folder(place).mkdir(0o700)
            folder(place).chmod(0o777 if name == "open" else 0o700)
            if name == "foreign" and os.geteuid() == 0:
                os.chown(folder(place), 12345, 12345)
            elif name == "foreign":
                del places[name]
    try:
        # Nowhere else to go to either: see Record.AFolderThatIsNotTheUsersOwnIsLeftAlone.
        done = run(tmp_path, "without_room", json.dumps(places), KOILA_LOG="info", HOME="/proc", XDG_RUNTIME_DIR="/proc", XDG_CACHE_HOME="/proc")
        assert done.returncode == 0, done.stderr
        ends = json.loads(done.stdout)
        assert ends.keys() == places.keys()
        for name, end in ends.items():
            assert (end["status"], end["steps"]) == (0, 10), (name, done.stderr)
        for name in ("open", "link", "foreign"):
            assert name not in places or list(folder(tmp_path / name).iterdir()) == []
        lines = [line for line in done.stderr.splitlines() if "no record" in line]
        full = [folder(tmp_path) / f"{ends['limit']['pid']}.koila"] + (records(tmp_path / "160k") if "160k" in places else [])
        assert len(lines) == len(places) - 1 - ("160k" in places), "\n".join(lines)
        for reason in ("is open to others", "is not a folder", "cannot be made"):
            assert any(reason in line for line in lines), reason
        assert len(full) == 1 + ("160k" in places)
        for path in full:
            record = read(path)
            assert "no room on the disk" in record["problem"] and record["steps"] == 10 and record["end"] == "cut off"
    finally:
        for mount in mounts:
            subprocess.run(["umount", "-l", str(mount)])
