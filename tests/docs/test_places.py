"""The files of examples/places/ run: the entry point, the Slurm job with an `srun` that runs here, the scalars, and the launcher's environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ROOT / "examples" / "places"


def run(*command, cwd, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
    environment["PATH"] = os.pathsep.join([str(cwd / "bin"), str(ROOT / "build" / "tool"), str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment | {"OMP_NUM_THREADS": "1"} | more, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def test_the_entry_point_of_an_image(tmp_path):
    done = run(PLACES / "entrypoint.sh", "python", ROOT / "examples" / "digits_mlp.py", "--steps", "3", cwd=tmp_path, KOILA_CPU_MEMORY="10M")
    assert "test accuracy" in done.stdout and "3 steps, all rescued" in done.stderr
    dockerfile = (PLACES / "Dockerfile").read_text()
    assert "examples/places/entrypoint.sh" in dockerfile
    headers = {"libfmt-dev", "nlohmann-json3-dev", "libcli11-dev", "ninja-build", "pkg-config", "g++"}
    assert headers <= set(dockerfile.split()) and headers <= set((ROOT / "docs" / "install.md").read_text().split()), "as docs/install.md has it"


def test_a_job_of_slurms(tmp_path):
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text('#!/bin/sh\nexec "$@"\n')
    srun.chmod(0o755)
    done = run("bash", PLACES / "job.sbatch", cwd=tmp_path, BUDGET="9M", SCRIPT=str(PLACES / "ddp.py"))
    assert "step 3" in done.stdout
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("report-*.json")]
    ranks = [report for report in reports if report["steps"] > 0]
    assert [report["steps"] for report in ranks] == [3, 3] and all(report["rescues"] > 0 for report in ranks), reports


def test_scalars_of_events(tmp_path):
    done = run("koila", "run", "--quiet", "--report", "off", "--cpu-memory", "3M", "--", "python", PLACES / "scalars.py", cwd=tmp_path, PYTHONPATH=str(ROOT / "python"))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {(step, name) for step, name, _ in lines} >= {(str(step), f"koila/{name}") for step in (1, 2, 3) for name in ("peak_mib", "live_mib", "micro_batch")}
    assert ["0", "koila/rescues", "1.0"] in lines
    without = run("python", PLACES / "scalars.py", cwd=tmp_path, PYTHONPATH=str(ROOT / "python"), KOILA_MODE="off")
    assert without.stdout == ""


def test_a_launcher_of_vs_code(tmp_path):
    (configuration,) = json.loads((PLACES / "launch.json").read_text().replace("${workspaceFolder}", str(ROOT)))["configurations"]
    done = run("python", configuration["program"], *configuration["args"], cwd=tmp_path, **configuration["env"])
    assert "3 steps, all rescued" in done.stderr
