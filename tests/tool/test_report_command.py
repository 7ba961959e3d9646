"""koila report: of a JSON report, a record and a process, and of two runs."""

import csv
import io
import json
import pathlib
import signal
import subprocess
import sys

import pytest
from command import KOILA, TINY, clean_environment, koila


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a run that was rescued and one that was not, each as JSON and as a record."""
    folder = tmp_path_factory.mktemp("runs")
    for name, budget in (("tight", "1MiB"), ("roomy", "64MiB")):
        result = koila("run", "-q", "--cpu-memory", budget, "--report", f"{folder}/{name}.json", "--record", f"{folder}/{name}.koila", "--",
                       sys.executable, TINY, "1024", "4")
        assert result.returncode == 0, result.stderr
    return folder


def test_a_record_tells_what_the_report_tells(runs: pathlib.Path) -> None:
    of_json, of_record = (koila("report", str(runs / name)) for name in ("tight.json", "tight.koila"))
    assert of_json.returncode == of_record.returncode == 0, of_json.stderr + of_record.stderr
    for text in (of_json.stdout, of_record.stdout):
        assert "4 steps, all rescued" in text and "1024 rows at once ran out" in text and " of 1.0 MiB" in text
    assert "\033" not in of_json.stdout


def test_every_form(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    result = koila("report", str(runs / "tight.koila"), "--json", "-", "--html", "a.html", "--csv", "a.csv", "--pickle", "a.pickle", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["schema"] == 1 and data["steps"] == 4 and data["devices"]["cpu"]["budget_bytes"] == 1 << 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.html", "a.pickle"]
    assert all(path.stat().st_size > 0 for path in tmp_path.iterdir())


def test_two_runs(runs: pathlib.Path) -> None:
    files = str(runs / "tight.json"), str(runs / "roomy.koila")
    rows = {row["name"]: row for row in json.loads(koila("report", *files, "--json", "-").stdout)["rows"]}
    assert rows["steps"]["values"] == [4, 4]
    tight, roomy = rows["cpu: peak"]["values"]
    assert tight <= 1 << 20 < roomy
    assert rows["cpu: peak"]["percent"][1] == pytest.approx((roomy / tight - 1) * 100)
    assert rows["rescues"]["values"][0] > 0 and rows["rescues"]["values"][1] == 0
    text = koila("report", *files).stdout
    assert "tight.json" in text and "cpu: budget" in text and "(+6300.0%)" in text
    table = list(csv.DictReader(io.StringIO(koila("report", *files, "--csv", "-").stdout)))
    assert {row["figure"]: row["roomy.koila"] for row in table}["steps"] == "4"


def test_a_running_process_and_one_that_was_killed(tmp_path: pathlib.Path) -> None:
    variables = {"TMPDIR": str(tmp_path)}
    command = [str(KOILA), "run", "-q", "--cpu-memory", "64MiB", "--", sys.executable, TINY, "64", "100000", "0.01"]
    with subprocess.Popen(command, env=clean_environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "step 3\n":
                break
        running = koila("report", str(process.pid), **variables)
        assert running.returncode == 0 and " steps, nothing ran out" in running.stdout, running.stderr
        assert " allocations, " in koila("report", "-v", str(process.pid), **variables).stdout
        listed = koila("report", **variables).stdout
        assert str(process.pid) in listed and "running" in listed
        process.send_signal(signal.SIGKILL)
    listed = koila("report", **variables).stdout
    assert str(process.pid) in listed and "cut off" in listed
    killed = koila("report", str(process.pid), "--json", "-", **variables)
    assert json.loads(killed.stdout)["steps"] >= 3, killed.stderr


def test_what_cannot_be_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text").write_text("no report\n")
    (tmp_path / "broken.json").write_text('{"schema": 1')
    for word, said in (("text", "text"), ("broken.json", "broken.json"), ("absent", "no file absent"), ("999999999", "no process 999999999")):
        result = koila("report", word, cwd=tmp_path, TMPDIR=str(tmp_path))
        assert result.returncode == 1 and said in result.stderr and result.stdout == "", word
    assert koila("report", "--html", "x.html").returncode == 2
    assert koila("report", "text", "text", "--html", "x.html", cwd=tmp_path).returncode == 2
    assert "no records in" in koila("report", TMPDIR=str(tmp_path)).stdout


def test_a_report_that_cannot_be_written(runs: pathlib.Path) -> None:
    result = koila("report", str(runs / "tight.json"), "--json", "/nonexistent/out.json")
    assert result.returncode == 1 and "cannot write /nonexistent/out.json" in result.stderr
