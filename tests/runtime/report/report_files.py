"""Reports to look at: samples that write_samples makes, and those of real runs."""

import fcntl
import json
import os
import pathlib
import subprocess
from collections.abc import Callable

import jsonschema

ROOT = pathlib.Path(__file__).parents[3]
WRITE_SAMPLES = ROOT / "build" / "tests" / "runtime" / "write_samples"
LIBRARY = pathlib.Path(os.environ.get("KOILA_LIBRARY", ROOT / "build" / "lib" / "libkoila.so"))
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

SAMPLES = ("empty", "full", "longest", "traced", "longest_trace")
RUNS = ("nothing", "rescued", "refused")

# Of this run of the tests, and of all its workers: set by conftest.py.
folder: pathlib.Path


def made_once(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            partial = folder / f"{name}.partial"
            partial.mkdir()
            make(partial)
            partial.rename(folder / name)
    return folder / name


def samples() -> pathlib.Path:
    """The folder with the samples in every form."""
    return made_once("samples", lambda into: subprocess.run([WRITE_SAMPLES, into], check=True))


def runs() -> pathlib.Path:
    """The folder with the reports of real runs, made as those in docs/examples are."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_")} | {"KOILA_LIBRARY": str(LIBRARY)}
    return made_once("runs", lambda into: subprocess.run([ROOT / "scripts" / "examples", into], check=True, env=environment, stderr=subprocess.DEVNULL))


def report(name: str) -> dict:
    return json.loads(((runs() if name in RUNS else samples()) / f"{name}.json").read_text())


def problems(report: dict) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in VALIDATOR.iter_errors(report)]
