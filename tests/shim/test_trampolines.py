import pathlib
import subprocess

import pytest
from preload import ROOT, Preload


@pytest.fixture
def program(tmp_path: pathlib.Path) -> list[str]:
    source = ROOT / "tests" / "shim" / "many_arguments.cc"
    library = tmp_path / "libtorch_cpu.so"
    subprocess.run(["g++", "-O1", "-DLIBRARY", "-shared", "-fPIC", "-o", library, source], check=True)
    subprocess.run(["g++", "-O1", "-o", tmp_path / "program", source], check=True)
    return [str(tmp_path / "program"), str(library)]


def test_arguments_results_and_exceptions_pass_and_what_is_nowhere_fails_as_the_linker_would(real: Preload, program: list[str]) -> None:
    done = real.run(*program)
    assert done.stdout.splitlines() == ["36 30.75 70 110 150 190 45 42"] * 2
    assert done.returncode == 127
    assert done.stderr == "koila: symbol lookup error: undefined symbol: _Z15THPStorage_WrapN3c107StorageE\n"
