"""koila probe, on a tiny model under a budget."""

import json
import os
import pathlib
import sys
import time

from command import TINY, koila, make_executable

RANGE = ("--cpu-memory", "1MiB", "--start", "512", "--min", "512", "--max", "2048", "--within", "100", "--steps", "2")


def test_finds_what_fits_without_koila_and_with(tmp_path: pathlib.Path) -> None:
    result = koila("probe", *RANGE, "--json", "out.json", "--", sys.executable, TINY, "{}", "1000", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    for half in ("without", "with"):
        for trial in found[half]["trials"]:
            fits = trial["outcome"] == "fits"
            assert fits == (trial["batch"] <= found[half]["largest"]), trial
            assert trial["steps"] >= 2 if fits else "out of memory" in trial["why"], trial
    assert found["without"]["smallest_that_does_not_fit"] <= found["with"]["largest"]
    assert all(trial["rescues"] == 0 for trial in found["without"]["trials"])
    assert f"largest batch without koila: {found['without']['largest']} (" in result.stdout
    assert f"largest batch with koila:    {found['with']['largest']} (" in result.stdout
    assert "tried for 2 steps each" in result.stdout
    assert f"trying {found['with']['largest']} rows: fits" in result.stderr
    assert result.stdout.splitlines()[-1] == f"run: {found['recommended']}"
    assert found["recommended"] == f"koila run --cpu-memory=1MiB -- {sys.executable} {TINY} {found['with']['largest']} 1000"


def fake_program(tmp_path: pathlib.Path, body: str) -> str:
    return make_executable(tmp_path / "program", "#!/bin/sh\n" + body)


def test_the_ways_to_give_a_batch(tmp_path: pathlib.Path) -> None:
    """Each trial fails at once, and what it said is shown: with the words it was given."""
    program = fake_program(tmp_path, 'echo "words $* variable $BATCH"; exit 3\n')
    for options, more, said in ((("--batch-arg", "--batch-size {}"), (), "words --batch-size 512 variable"), (("--batch-env", "BATCH"), (), "words  variable 512"),
                                ((), ("--size={}",), "words --size=512 variable")):
        result = koila("probe", *RANGE, *options, "--", program, *more)
        assert result.returncode == 1
        assert said in result.stderr and "ended with status 3" in result.stderr, result.stderr


def test_the_last_lines_of_what_fails_are_lines(tmp_path: pathlib.Path) -> None:
    program = fake_program(tmp_path, 'printf "first\\n  second\\n"; exit 3\n')
    said = koila("probe", *RANGE, "--", program, "{}").stderr.splitlines()
    assert said[-3].endswith("ended with status 3") and said[-2:] == ["koila:   first", "koila:     second"], said


def test_wrong_use() -> None:
    for words, said in (
        (["--cpu-memory", "1MiB", "--", "true"], "how does the program take its batch?"),
        (["--cpu-memory", "1MiB", "--batch-arg", "--batch", "--", "true"], "has no {}"),
        (["--cpu-memory", "1", "--", "true", "{}"], "--cpu-memory 1 is not understood"),
        (["--cpu-memory", "1MiB", "--min", "9", "--max", "3", "--", "true", "{}"], "--min <= --max"),
        (["--cpu-memory", "1MiB"], "which program?"),
        (["--cpu-memory", "1MiB", "--mode", "track", "--", "true", "{}"], "KOILA_MODE=track (--mode) leaves nothing to probe"),
        (["--cpu-memory", "1MiB", "--ladder", "3", "--", "true", "{}"], "KOILA_LADDER (--ladder) without rung 1 or 2 leaves nothing to probe"),
    ):
        result = koila("probe", *words)
        assert result.returncode == 2 and said in result.stderr, words
    if not os.path.exists("/dev/nvidia0"):
        result = koila("probe", "--", "true", "{}")
        assert result.returncode == 2 and "a budget is needed" in result.stderr
    assert koila("probe", "--cpu-memory", "1MiB", "--", "no-such-program", "{}").returncode == 127


def test_json_to_stdout_is_json_alone(tmp_path: pathlib.Path) -> None:
    memory = fake_program(tmp_path, 'echo "RuntimeError: CUDA error: out of memory" >&2; exit 1\n')
    result = koila("probe", "--cpu-memory", "1MiB", "--max", "1", "-q", "--json", "-", "--", memory, "{}")
    assert json.loads(result.stdout)["recommended"] == "" and result.returncode == 1


def test_memory_that_runs_out_elsewhere_and_too_slow_programs(tmp_path: pathlib.Path) -> None:
    memory = fake_program(tmp_path, 'echo "RuntimeError: CUDA error: out of memory" >&2; exit 1\n')
    result = koila("probe", *RANGE, "--", memory, "{}")
    assert result.returncode == 1 and "largest batch without koila: none from 512 on" in result.stdout
    # Its children go with it, even such as do not heed SIGTERM.
    slow = fake_program(tmp_path, f"(trap '' TERM; exec sleep 1000) &\necho $! > {tmp_path}/sleeper\nwait\n")
    result = koila("probe", "--cpu-memory", "1MiB", "--max", "1", "--timeout", "0.3", "--", slow, "{}")
    assert "too slow" in result.stderr
    sleeper = pathlib.Path(f"/proc/{(tmp_path / 'sleeper').read_text().strip()}")
    until = time.monotonic() + 10
    while sleeper.exists() and "State:\tZ" not in (sleeper / "status").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert not sleeper.exists() or "State:\tZ" in (sleeper / "status").read_text()
