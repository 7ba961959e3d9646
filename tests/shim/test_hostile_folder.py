"""Folders that a program goes to, and folders that others write to as well: no code of theirs is loaded, no file of the user's is written to, nothing waits."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import threading

import pytest
from preload import BUILD, Preload, clean_environment

STEP = "import torch; x = torch.ones(3, requires_grad=True); (x * 2).sum().backward(); "


def plant_libraries(folder: pathlib.Path, preload: Preload) -> None:
    """A build/lib of somebody else's, with an adapter that would say that it was loaded."""
    lib = folder / "build" / "lib"
    lib.mkdir(parents=True)
    source = folder / "planted.c"
    source.write_text('#include <stdio.h>\n__attribute__((constructor)) static void f(void) { puts("PLANTED"); fflush(stdout); }\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", lib / "libkoila_torch.so", source], check=True)
    shutil.copy(preload.folder / "libkoila_torch.version", lib)
    shutil.copy(lib / "libkoila_torch.so", folder / "libkoila_torch.so")
    shutil.copy(preload.folder / "libkoila_torch.version", folder)


@pytest.fixture
def here(fake: Preload, tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with build/lib/libkoila.so in it, as a checkout is."""
    folder = tmp_path / "checkout"
    (folder / "build").mkdir(parents=True)
    shutil.copytree(fake.folder, folder / "build" / "lib")
    return folder


@pytest.mark.parametrize("name", ["build/lib/libkoila.so", "/proc/self/cwd/build/lib/libkoila.so"])
def test_the_adapter_is_the_one_beside_the_library_wherever_the_program_goes(fake: Preload, here: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    there = tmp_path / "there"
    plant_libraries(there, fake)
    code = f"import os; os.chdir({str(there)!r}); " + STEP + "print(x.grad.numpy())"
    done = fake.run(sys.executable, "-c", code, cwd=here, LD_PRELOAD=name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2. 2. 2.]\n", "")
    assert fake.trace()[0].startswith("attach torch=2."), "the right one was loaded"


def test_found_along_a_search_path_from_the_working_folder(fake: Preload, here: pathlib.Path, tmp_path: pathlib.Path) -> None:
    there = tmp_path / "there"
    plant_libraries(there, fake)
    code = f"import os; os.chdir({str(there)!r}); " + STEP
    done = fake.run(sys.executable, "-c", code, cwd=here / "build", LD_PRELOAD="libkoila.so", LD_LIBRARY_PATH="lib")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert fake.trace()[0].startswith("attach torch=2.")


def test_a_library_that_was_moved_away_under_the_program_brings_no_other_code(fake: Preload, here: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Where the adapter is not any more, koila stays out, whatever lies in the working folder."""
    there = tmp_path / "there"
    plant_libraries(there, fake)
    code = f"import os, shutil; shutil.move('build', 'away'); os.chdir({str(there)!r}); " + STEP
    done = fake.run(sys.executable, "-c", code, cwd=here, LD_PRELOAD="build/lib/libkoila.so")
    assert (done.returncode, done.stdout) == (0, "")
    assert "koila stays out" in done.stderr and fake.trace() == []


def test_a_library_with_a_whole_path_looks_at_no_file_at_the_start(real: Preload) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    traced = real.run("strace", "-f", "-e", "trace=openat,readlink,getcwd,stat,newfstatat", "-o", "/dev/stdout", "true").stdout
    assert "/proc" not in traced.split("libkoila.so", 1)[1]


class TestPlantedNames:
    """In a folder like /tmp, where others know the name of a file that is to be written."""

    FORMS = ("json", "html", "txt", "csv", "pickle")

    def test_a_link_at_the_partial_files_name_leads_nowhere(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        victim, reports = tmp_path / "victim", [tmp_path / f"run.{form}" for form in self.FORMS]
        victim.write_text("mine\n")
        code = f"import os\nfor form in {self.FORMS}: os.symlink({str(victim)!r}, f'{tmp_path}/run.{{form}}.{{os.getpid()}}.partial')\nimport torch"
        done = fake.python(code, FAKE_GLUE_DO="step", KOILA_REPORT=",".join(map(str, reports)))
        assert (done.returncode, done.stderr) == (0, "")
        assert victim.read_text() == "mine\n"
        assert all(report.stat().st_size > 0 and not report.is_symlink() for report in reports)

    @pytest.mark.parametrize("make", ["os.mkfifo(name)", "os.symlink('/nonexistent/x', name)", "os.link('victim', name)", "os.mkdir(name)"])
    def test_nothing_at_that_name_keeps_the_file_from_being_written(self, fake: Preload, tmp_path: pathlib.Path, make: str) -> None:
        (tmp_path / "victim").write_text("mine\n")
        report, record = tmp_path / "run.json", tmp_path / "run.koila"
        code = f"import os\nfor file in ('{report}', '{record}'):\n    name = f'{{file}}.{{os.getpid()}}.partial'\n    {make}\nimport torch"
        done = fake.run("timeout", "60", sys.executable, "-c", code, cwd=tmp_path, FAKE_GLUE_DO="step", KOILA_REPORT=str(report), KOILA_RECORD=str(record))
        assert (done.returncode, done.stderr) == (0, "")
        assert report.stat().st_size > 0 and record.stat().st_size > 0 and (tmp_path / "victim").read_text() == "mine\n"
        assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".partial") and p.is_file() and not p.is_symlink() and p.stat().st_nlink == 1] == []

    def test_a_link_at_the_name_itself_is_replaced(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        victim, report = tmp_path / "victim", tmp_path / "run.json"
        victim.write_text("mine\n")
        report.symlink_to(victim)
        assert fake.python("import torch", FAKE_GLUE_DO="step", KOILA_REPORT=str(report)).stderr == ""
        assert victim.read_text() == "mine\n" and not report.is_symlink() and json.loads(report.read_text())["steps"] == 1

    @pytest.mark.parametrize("kind", ["fifo", "folder", "socket"])
    def test_what_is_no_file_is_left_alone(self, fake: Preload, tmp_path: pathlib.Path, kind: str) -> None:
        report = tmp_path / "run.json"
        make = {"fifo": "os.mkfifo(p)", "folder": "os.mkdir(p)", "socket": "import socket; socket.socket(socket.AF_UNIX).bind(p)"}[kind]
        exec(make, {"os": os, "p": str(report)})
        before = report.stat()
        done = fake.run("timeout", "60", sys.executable, "-c", "import torch", FAKE_GLUE_DO="step", KOILA_REPORT=str(report), KOILA_RECORD=str(report))
        assert done.returncode == 0
        assert done.stderr.count("koila: ") == len(done.stderr.splitlines()) == 2
        assert (report.stat().st_ino, stat.S_IFMT(report.stat().st_mode)) == (before.st_ino, stat.S_IFMT(before.st_mode))
        assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []

    def test_a_pipe_as_the_log_does_not_keep_the_program_waiting(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        os.mkfifo(tmp_path / "log")
        done = fake.run("timeout", "60", sys.executable, "-c", "import torch", FAKE_GLUE_DO="rescue", KOILA_REPORT="off", KOILA_LOG_FILE=str(tmp_path / "log"))
        assert done.returncode == 0
        assert "logging to stderr" in done.stderr and "rescued: out of memory" in done.stderr

    @pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")
    @pytest.mark.parametrize("planted", ["link", "file"])
    def test_a_log_in_a_shared_folder_follows_nobody_elses_link(self, fake: Preload, tmp_path: pathlib.Path, planted: str) -> None:
        victim, shared = tmp_path / "victim", tmp_path / "shared"
        victim.write_text("mine\n")
        shared.mkdir()
        shared.chmod(0o1777)
        log = shared / "koila.log"
        log.symlink_to(victim) if planted == "link" else log.write_text("")
        os.chown(log, 4711, 4711, follow_symlinks=False)
        done = fake.python("import torch", FAKE_GLUE_DO="rescue", KOILA_REPORT="off", KOILA_LOG_FILE=str(log))
        assert "logging to stderr" in done.stderr and "rescued" in done.stderr
        assert victim.read_text() == "mine\n" and (log.is_symlink() or log.read_text() == "")


def test_what_koila_writes_is_for_its_user_alone(fake: Preload, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    done = fake.run("bash", "-c", 'umask 000; exec "$@"', "-", sys.executable, "-c", "import torch", FAKE_GLUE_DO="rescue step",
                    KOILA_REPORT=",".join(f"{out}/run.{form}" for form in TestPlantedNames.FORMS), KOILA_RECORD=f"{out}/run.koila", KOILA_LOG_FILE=f"{out}/run.log")
    assert done.returncode == 0
    made = sorted(out.iterdir())
    assert [path.suffix[1:] for path in made] == sorted([*TestPlantedNames.FORMS, "koila", "log"])
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in made} == {"0o600"} and all(path.stat().st_size > 0 for path in made)


def test_a_record_can_be_read_while_others_replace_and_remove_it(real: Preload, tmp_path: pathlib.Path) -> None:
    """koila report on a file that changes under it says what it found, and ends."""
    record, stop = tmp_path / "run.koila", threading.Event()
    assert real.python(STEP, KOILA_REPORT="off", KOILA_RECORD=str(record)).returncode == 0
    whole = record.read_bytes()

    def disturb() -> None:
        sizes = [0, 3, 4096, len(whole) // 2, len(whole)]
        while not stop.is_set():
            for size in sizes:
                record.write_bytes(whole[:size])

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(20):
            done = subprocess.run([BUILD / "tool" / "koila", "report", str(record)], env=clean_environment(), capture_output=True, timeout=60)
            assert done.returncode in (0, 1), done
    finally:
        stop.set()
        thread.join()
