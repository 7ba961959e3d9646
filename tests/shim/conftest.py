import pathlib
import shutil

import pytest
from preload import BUILD, Preload


@pytest.fixture
def real() -> Preload:
    """As users have it."""
    return Preload(BUILD / "lib")


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Preload:
    """The real preload with the fake adapter, in a folder of its own."""
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(BUILD / "lib" / "libkoila.so", folder)
    shutil.copy(BUILD / "lib" / "libkoila_torch.version", folder)
    shutil.copy(BUILD / "tests" / "shim" / "libfake_glue.so", folder / "libkoila_torch.so")
    return Preload(folder)


@pytest.fixture
def libtorch_program() -> str:
    return str(BUILD / "tests" / "shim" / "libtorch_program")
