"""Runs the command."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
KOILA = ROOT / "build" / "tool" / "koila"
LIBRARY = ROOT / "build" / "lib" / "libkoila.so"
MLP = str(ROOT / "examples" / "digits_mlp.py")


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without a trace of koila, and `more`."""
    return {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"} | more


def koila(*words: str, cwd: pathlib.Path | None = None, command: pathlib.Path = KOILA, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(command), *words], env=clean_environment(**variables), cwd=cwd, capture_output=True, text=True, timeout=600)


def koila_python(code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return koila("run", *options, "--", sys.executable, "-c", code, **variables)


def make_executable(path: pathlib.Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
