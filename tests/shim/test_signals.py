"""The exit status, the files and the data of a program are its own: whatever koila writes, and wherever that fails, none of them changes."""

import os
import pathlib
import re
import resource
import signal
import subprocess
import sys

import pytest
from preload import ROOT, Preload, clean_environment

RESCUED = "koila: rescued: out of memory in aten::linear"


def run(preload: Preload, *command: str, stderr=subprocess.PIPE, shell: str = "", limit: int | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """With the signals at their defaults, which Python does not leave to its children by itself."""

    def prepare() -> None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = clean_environment(LD_PRELOAD=str(preload.library), FAKE_GLUE_DO="rescue refuse step", FAKE_GLUE_TRACE="/dev/null") | variables
    words = ["bash", "-c", shell, "-", *command] if shell else list(command)
    return subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=120, preexec_fn=prepare)


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("mode", ["log", "report", "warning", "stays out"])
def test_nobody_reads_stderr(fake: Preload, libtorch_program: str, mode: str) -> None:
    """Every way to a line on stderr."""
    variables = {"log": {"KOILA_REPORT": "off"}, "report": {"KOILA_LOG": "off"}, "warning": {"KOILA_NONSENSE": "1", "FAKE_GLUE_DO": ""}, "stays out": {}}[mode]
    if mode == "stays out":
        (fake.folder / "libkoila_torch.version").write_text("2.11.0\n")
    writer = closed_pipe()
    done = run(fake, libtorch_program, stderr=writer, **variables)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "2 2\n")


def test_what_is_nowhere_ends_as_the_linker_would_have_it_with_nobody_reading(fake: Preload, tmp_path: pathlib.Path) -> None:
    source, library, program = ROOT / "tests" / "shim" / "many_arguments.cc", tmp_path / "libtorch_cpu.so", tmp_path / "program"
    subprocess.run(["g++", "-O1", "-DLIBRARY", "-shared", "-fPIC", "-o", library, source], check=True)
    subprocess.run(["g++", "-O1", "-o", program, source], check=True)
    writer = closed_pipe()
    assert run(fake, str(program), str(library), stderr=writer).returncode == 127
    os.close(writer)


class TestLimitOfAFilesSize:
    FORMS = ("json", "html", "txt", "csv", "pickle", "koila", "log")

    @pytest.mark.parametrize("limit", [0, 100, 5000])
    def test_files(self, fake: Preload, libtorch_program: str, tmp_path: pathlib.Path, limit: int) -> None:
        reports = ",".join(f"{tmp_path}/run.{form}" for form in self.FORMS[:5])
        done = run(fake, libtorch_program, limit=limit, KOILA_REPORT=reports, KOILA_RECORD=f"{tmp_path}/run.koila", KOILA_LOG_FILE=f"{tmp_path}/run.log")
        assert (done.returncode, done.stdout) == (0, "2 2\n")
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")] == []
        assert all(path.stat().st_size <= limit for path in tmp_path.glob("run.*"))

    def test_stderr(self, fake: Preload, libtorch_program: str, tmp_path: pathlib.Path) -> None:
        with open(tmp_path / "stderr", "w") as stderr:
            done = run(fake, libtorch_program, stderr=stderr, limit=50)
        assert (done.returncode, done.stdout) == (0, "2 2\n")
        assert (tmp_path / "stderr").stat().st_size == 50


def test_a_full_disk_is_nothing_that_a_program_hears_of(fake: Preload, libtorch_program: str) -> None:
    with open("/dev/full", "w") as full:
        for variables in ({}, {"KOILA_LOG": "trace"}, {"KOILA_LOG_FILE": "/proc/self/fd/2"}):
            done = run(fake, libtorch_program, stderr=full, **variables)
            assert (done.returncode, done.stdout) == (0, "2 2\n")
    done = run(fake, libtorch_program, shell='"$@" 3>/dev/full', KOILA_LOG_FILE="/proc/self/fd/3", KOILA_REPORT="off")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 2\n", "")


def test_the_programs_own_signals_come_through_and_its_dispositions_stay(fake: Preload) -> None:
    """Blocked for a write of koila's, and for no longer; one of these that was pending before stays pending."""
    code = (
        "import os, signal, sys, ctypes, threading\n"
        "three = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU]\n"
        "import torch\n"
        f"do = ctypes.CDLL({str(fake.folder / 'libkoila_torch.so')!r}).fake_glue_do\n"
        "got = []\n"
        "for s in three: signal.signal(s, lambda n, f: got.append(n))\n"
        "do(b'rescue refuse')\n"
        "mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "print(mask & set(three), got, all(callable(signal.getsignal(s)) for s in three))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, three)\n"
        "for s in three: signal.pthread_kill(threading.get_ident(), s)\n"
        "do(b'rescue refuse')\n"
        "print(sorted(signal.sigpending() & set(three)) == sorted(three))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, three)\n"
        "print(sorted(got) == sorted(three))\n"
        "os.write(1, b'end\\n')\n"
    )
    writer = closed_pipe()
    done = run(fake, sys.executable, "-u", "-c", code, stderr=writer, KOILA_LOG="debug")
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "set() [] True\nTrue\nTrue\nend\n")


class TestDescriptor2:
    def test_closed_from_the_start_the_programs_file_of_that_number_is_its_own(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        code = (
            "import torch, os, ctypes\n"
            f"do = ctypes.CDLL({str(fake.folder / 'libkoila_torch.so')!r}).fake_glue_do\n"
            f"file = os.open({str(tmp_path / 'data')!r}, os.O_WRONLY | os.O_CREAT)\n"
            "print(file)\n"
            "os.write(file, b'data\\n')\n"
            "do(b'rescue refuse step')\n"
        )
        done = run(fake, sys.executable, "-c", code, shell='exec "$@" 2>&-', KOILA_NONSENSE="1")
        assert (done.returncode, done.stdout) == (0, "2\n")
        assert (tmp_path / "data").read_text() == "data\n"

    def test_closed_later_too(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        code = (
            "import torch, os, ctypes, sys\n"
            f"do = ctypes.CDLL({str(fake.folder / 'libkoila_torch.so')!r}).fake_glue_do\n"
            "do(b'rescue')\n"
            f"os.close(2); print(os.open({str(tmp_path / 'data')!r}, os.O_WRONLY | os.O_CREAT))\n"
            "do(b'rescue refuse step')\n"
        )
        done = run(fake, sys.executable, "-c", code)
        assert (done.returncode, done.stdout) == (0, "2\n") and RESCUED in done.stderr
        assert (tmp_path / "data").read_text() == ""

    def test_closed_and_opened_again_it_is_stderr_once_more(self, fake: Preload) -> None:
        code = (
            "import torch, os, ctypes\n"
            f"do = ctypes.CDLL({str(fake.folder / 'libkoila_torch.so')!r}).fake_glue_do\n"
            "kept = os.dup(2); os.close(2); os.dup2(kept, 2)\n"
            "do(b'rescue')\n"
        )
        assert RESCUED in run(fake, sys.executable, "-c", code).stderr

    def test_no_file_of_koilas_is_ever_one_of_the_standard_three(self, fake: Preload, libtorch_program: str, tmp_path: pathlib.Path) -> None:
        """Where a program has closed them, what it writes there is lost, and must not come to lie in a file of koila's."""
        if subprocess.run(["which", "strace"], capture_output=True).returncode != 0:
            pytest.skip("no strace")
        trace = tmp_path / "trace"
        report = ",".join(f"{tmp_path}/run.{form}" for form in ("json", "txt"))
        variables = {"KOILA_REPORT": report, "KOILA_RECORD": f"{tmp_path}/run.koila", "KOILA_LOG_FILE": f"{tmp_path}/run.log"}
        done = run(fake, libtorch_program, shell=f'exec strace -f -o {trace} -e trace=write,pwrite64,ftruncate,fallocate,mmap "$@" 2>&- 0<&-', **variables)
        assert done.returncode == 0
        # The fake adapter keeps a trace of its own.
        ours = [line for line in trace.read_text().splitlines() if re.search(r"(write|pwrite64|ftruncate|fallocate)\([02],", line) and not re.search(r'"\d+ (attach|execute)', line)]
        assert ours == [] and (tmp_path / "run.koila").stat().st_size > 0

    def test_whoever_does_not_read_does_not_keep_the_program_from_its_end(self, fake: Preload, libtorch_program: str) -> None:
        """A parent that waits for the end before it reads, and a pipe that the program has all but filled."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            pass
        os.set_blocking(writer, True)
        done = run(fake, libtorch_program, stderr=writer)
        os.close(reader), os.close(writer)
        assert (done.returncode, done.stdout) == (0, "2 2\n")


def test_from_the_background_of_a_terminal_that_stops_writers(fake: Preload, libtorch_program: str) -> None:
    """stty tostop: a program that is silent by itself is not stopped by what koila says."""
    script = (
        "import os, pty, subprocess, sys, termios, time\n"
        "pid, master = pty.fork()\n"
        "if pid == 0:\n"
        "    a = termios.tcgetattr(0); a[3] |= termios.TOSTOP; termios.tcsetattr(0, termios.TCSANOW, a)\n"
        "    child = subprocess.Popen([sys.argv[1]], stdout=subprocess.DEVNULL, process_group=0)\n"
        "    _, status = os.waitpid(child.pid, os.WUNTRACED)\n"
        "    os._exit(0 if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else 1)\n"
        "text = b''\n"
        "try:\n"
        "    while chunk := os.read(master, 4096): text += chunk\n"
        "except OSError: pass\n"
        "_, status = os.waitpid(pid, 0)\n"
        "print(os.WEXITSTATUS(status))\n"
    )
    done = run(fake, sys.executable, "-c", script, libtorch_program)
    assert done.stdout == "0\n", done.stderr
