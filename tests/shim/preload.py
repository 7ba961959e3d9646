"""Runs programs under the preload, with the real adapter or with one that only says what it was told (fake_glue.cc)."""

import dataclasses
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
BUILD = ROOT / "build"


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without a trace of koila, and `more`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KOILA_", "FAKE_GLUE_")) and k != "LD_PRELOAD"}
    return kept | more


@dataclasses.dataclass
class Preload:
    """A folder with libkoila.so, libkoila_torch.so and libkoila_torch.version."""

    folder: pathlib.Path

    @property
    def library(self) -> pathlib.Path:
        return self.folder / "libkoila.so"

    @property
    def trace_file(self) -> pathlib.Path:
        return self.folder / "trace"

    def run(self, *command: str, cwd: pathlib.Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = clean_environment(LD_PRELOAD=str(self.library), FAKE_GLUE_TRACE=str(self.trace_file)) | variables
        return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=1200)

    def python(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-c", code, **variables)

    def trace(self) -> list[str]:
        """What the fake adapter wrote so far, without the process ids."""
        if not self.trace_file.exists():
            return []
        return [line.split(" ", 1)[1] for line in self.trace_file.read_text().splitlines()]
