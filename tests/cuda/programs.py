"""Runs the C++ programs of programs/ with and without the preload, over the simulated CUDA runtime. No GPU and no torch.

Those on the simulated device (device/) have torch, and are marked needs_device.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("KOILA_BUILD", ROOT / "build"))
PROGRAMS = BUILD / "tests" / "cuda" / "programs"
SIMULATION = BUILD / "tests" / "cuda" / "sim"
DEVICE = BUILD / "tests" / "cuda" / "device"
PRELOAD = pathlib.Path(os.environ.get("KOILA_LIBRARY", BUILD / "lib" / "libkoila.so"))
KI, MI, GI = 1 << 10, 1 << 20, 1 << 30

needs_device = pytest.mark.skipif(not (DEVICE / "libsim_cuda_kernels.so").exists(),
                                  reason="no CUDA build of torch to take the allocator from (.cache/c10_cuda/why_not)")
ON_DEVICE = {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("tests/cuda/device", "scripts/lib")), "OMP_NUM_THREADS": "1"}  # for a script()


@dataclasses.dataclass
class Done:
    """A program that has ended. `report` is its JSON report; None when it wrote none."""

    returncode: int
    stdout: str
    stderr: str
    report: dict | None = None

    def device(self, name: str = "cuda:0") -> dict:
        return self.report["devices"][name]

    def sources(self, device: str = "cuda:0") -> dict[tuple[str, str], dict]:
        """By kind and library."""
        return {(s["kind"], s["library"]): s for s in self.report["sources"] if s["device"] == device}

    def koila_lines(self) -> list[str]:
        return [line.removeprefix("koila: ").strip() for line in self.stderr.splitlines() if line.startswith("koila: ")]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KOILA_", "SIM_", "PYTORCH_")) and k != "LD_PRELOAD"}
    return kept | more


def plain(*command: object, **variables: str) -> Done:
    """Without koila."""
    done = subprocess.run([str(c) for c in command], env=environment(**variables), capture_output=True, text=True, timeout=300)
    return Done(done.returncode, done.stdout, done.stderr)


def koila(*command: object, **variables: str) -> Done:
    """With koila, and with the text report on stderr if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        done = plain(*command, **({"LD_PRELOAD": str(PRELOAD), "KOILA_REPORT": f"stderr,{path}"} | variables))
        return dataclasses.replace(done, report=json.loads(path.read_text()) if path.exists() else None)


def program(name: str) -> pathlib.Path:
    return PROGRAMS / name


def script(name: str) -> tuple[object, ...]:
    """One in Python that imports sim_cuda: to be run with ON_DEVICE."""
    return sys.executable, ROOT / "tests" / "cuda" / name


def extension(name: str) -> pathlib.Path:
    return PROGRAMS / f"lib{name}.so"
