"""Programs that may do less than others, programs that gain rights, and a kill at every write: koila does with what there is, or stays out."""

import json
import os
import pathlib
import platform
import shutil
import struct
import subprocess
import sys
import tempfile

import pytest
from preload import BUILD, Preload, clean_environment

# Allows everything but memfd_create, mappings of files that are shared, and clone, clone3 and vfork.
SANDBOX = """
import ctypes, os, struct, sys
ALLOW, DENY = 0x7fff0000, 0x00050000 | 1
def op(code, k, jt=0, jf=0): return struct.pack("=HBBI", code, jt, jf, k)
LOAD, EQUAL, SET, RETURN = 0x20, 0x15, 0x45, 0x06
filter = b"".join([
    op(LOAD, 0),                      # number of the call
    op(EQUAL, 319, jt=6), op(EQUAL, 56, jt=5), op(EQUAL, 435, jt=4), op(EQUAL, 58, jt=3),
    op(EQUAL, 9, jf=3),               # mmap
    op(LOAD, 16 + 8 * 3), op(EQUAL, 1, jt=0, jf=1),  # MAP_SHARED and nothing else
    op(RETURN, DENY), op(RETURN, ALLOW)])
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(filter, len(filter))
program = struct.pack("HxxxxxxP", len(filter) // 8, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, os.strerror(ctypes.get_errno())
os.environ["LD_PRELOAD"] = os.environ.pop("PRELOAD", "")
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls by number")
@pytest.mark.parametrize("which", ["fake", "real"])
def test_without_shared_mappings_and_without_threads(request: pytest.FixtureRequest, which: str, libtorch_program: str, tmp_path: pathlib.Path) -> None:
    preload = request.getfixturevalue(which)

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = clean_environment(**variables)
        return subprocess.run([sys.executable, "-c", SANDBOX, libtorch_program], env=environment, capture_output=True, text=True, timeout=120)

    plain = run()
    if plain.returncode != 0 and "Operation not permitted" in plain.stderr:
        pytest.skip("no seccomp here")
    record = tmp_path / "run.koila"
    done = run(PRELOAD=str(preload.library), FAKE_GLUE_DO="rescue step", FAKE_GLUE_TRACE="/dev/null", KOILA_RECORD=str(record), KOILA_REPORT=f"{tmp_path}/run.json", KOILA_CPU_MEMORY="1GiB")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (0, "2 2\n")
    assert "no record of this run is kept (KOILA_RECORD)" in done.stderr and len(done.stderr.splitlines()) == (2 if which == "fake" else 1), done.stderr
    assert json.loads((tmp_path / "run.json").read_text())["steps"] > 0
    assert [path.name for path in tmp_path.iterdir() if "koila" in path.name] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a set-uid program")
def test_a_program_that_gains_rights_is_not_entered(real: Preload) -> None:
    """The loader takes no preload with a slash in its name there; without the bit it does."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        shutil.copy(real.library, folder / "libkoila.so")
        (folder / "libkoila.so").chmod(0o4755)  # not even so
        shutil.copy(shutil.which("cat"), folder / "cat")

        def maps() -> str:
            environment = clean_environment(LD_PRELOAD=str(folder / "libkoila.so"), KOILA_REPORT=str(folder / "run.json"))
            return subprocess.run([folder / "cat", "/proc/self/maps"], env=environment, capture_output=True, text=True, timeout=60, user=65534, group=65534, extra_groups=[]).stdout

        (folder / "cat").chmod(0o755)
        if "libkoila.so" not in maps():
            pytest.skip("that user cannot run it")
        (folder / "cat").chmod(0o4755)
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            pytest.skip("mounted nosuid")
        gained = maps()
        assert "/cat" in gained and "libkoila.so" not in gained


def test_killed_at_any_write_a_file_is_whole_or_not_there(fake: Preload, libtorch_program: str, tmp_path: pathlib.Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    calls = "write,rename,ftruncate,fallocate,unlink,mkdir"
    forms = ("json", "html", "txt", "csv", "pickle")
    whole = {}
    for n in range(60, 0, -3):
        out = tmp_path / str(n)
        out.mkdir()
        report = ",".join(f"{out}/run.{form}" for form in forms)
        done = fake.run("strace", "-f", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={n}", libtorch_program, FAKE_GLUE_DO="rescue refuse step",
                        FAKE_GLUE_TRACE="/dev/null", KOILA_REPORT=report, KOILA_RECORD=f"{out}/run.koila", KOILA_LOG="off")
        if "ptrace" in done.stderr:
            pytest.skip("no ptrace here")
        for form in forms:
            file = out / f"run.{form}"
            if n == 60:
                assert done.returncode == 0, "all of it is done by then"
                whole[form] = file.stat().st_size
            if file.exists():
                assert abs(file.stat().st_size - whole[form]) < 400, f"{form} at {n}"  # times and numbers differ
        if (out / "run.json").exists():
            assert json.loads((out / "run.json").read_text())["schema"] == 1
        if (out / "run.koila").exists():
            told = subprocess.run([BUILD / "tool" / "koila", "report", out / "run.koila"], env=clean_environment(), capture_output=True, text=True, timeout=60)
            assert told.returncode == 0 and "damaged" not in told.stderr, told.stderr
    assert not (tmp_path / "3" / "run.json").exists(), "it was killed indeed"
