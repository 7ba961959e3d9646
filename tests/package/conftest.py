import dataclasses
import fcntl
import pathlib
import sys
import tarfile

import pytest
from packages import copy_of_sources, run


@dataclasses.dataclass
class Packages:
    sources: pathlib.Path  # a clean checkout of the working tree
    sdist: pathlib.Path
    unpacked: pathlib.Path  # what is in the sdist, and build/
    wheel: pathlib.Path  # made of the sdist, without the part that needs torch, which compiles for minutes
    build: pathlib.Path  # where Meson made it: as scripts/setup has it, so that ccache knows most of it


def make(folder):
    sources, built, log = folder / "sources", folder / "dist", folder / "log"
    sources.mkdir(parents=True)
    built.mkdir()
    copy_of_sources(sources)
    without_torch = "--config-settings=setup-args=-Dglue=false"
    sdist = "import sys, mesonpy; mesonpy.build_sdist(sys.argv[1], {'setup-args': ['-Dglue=false']})"
    log.write_text(run(sys.executable, "-c", sdist, built, cwd=sources))
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "unpacked")
    unpacked = next((folder / "unpacked").iterdir())
    log.write_text(run(sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "--no-index", without_torch,
                       f"--config-settings=build-dir={unpacked / 'build'}", "-w", built, unpacked, cwd=folder))


@pytest.fixture(scope="session")
def packages(tmp_path_factory, worker_id):
    """Made once, whichever of the test runner's processes comes first; the others wait."""
    base = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    folder = base / "packages"
    with open(base / "packages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not folder.exists():
            make(folder)
            done.touch()
        if not done.exists():
            pytest.fail("the packages could not be made: see the test that failed first")
    dist, unpacked = folder / "dist", next((folder / "unpacked").iterdir())
    return Packages(folder / "sources", next(dist.glob("*.tar.gz")), unpacked, next(dist.glob("*.whl")), unpacked / "build")
