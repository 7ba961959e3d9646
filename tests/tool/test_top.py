"""koila top: one frame, and the live view in a pseudo terminal."""

import contextlib
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

from command import KOILA, TINY, clean_environment, koila


@contextlib.contextmanager
def training(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    command = [str(KOILA), "run", "-q", "--cpu-memory", "64MiB", "--report", "off", "--", sys.executable, TINY, "64", "100000", "0.01"]
    environment = clean_environment(TMPDIR=str(tmp_path))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "step 1\n"
        try:
            yield process
        finally:
            process.stdout.close()  # its next line ends it, if nothing else did
            process.kill()


class Terminal:
    """koila in a pseudo terminal."""

    def __init__(self, *words: str, columns: int = 100, rows: int = 30, **variables: str) -> None:
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.execve(str(KOILA), [str(KOILA), *words], clean_environment(TERM="xterm", **variables))
        self.resize(columns, rows)
        self.text = ""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, found: Callable[[str], bool]) -> str:
        """What was drawn until then; all there was if it ends before."""
        until = time.monotonic() + 60
        while not found(self.text) and time.monotonic() < until:
            if select.select([self.end], [], [], 1)[0]:
                try:
                    self.text += os.read(self.end, 65536).decode()
                except OSError:
                    break
        return self.text

    def settings(self) -> list:
        return termios.tcgetattr(self.end)

    def exit_status(self) -> int:
        self.read_until(lambda _: False)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_one_frame(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as process:
        for words in ([str(process.pid), "--once"], ["--once"], [str(process.pid)]):
            result = koila("top", *words, TMPDIR=str(tmp_path))
            assert result.returncode == 0, result.stderr
            assert f"pid {process.pid}   running" in result.stdout
            assert "budget 64.0 MiB" in result.stdout and "RSS" in result.stdout and TINY in result.stdout
            assert "\033" not in result.stdout
        with training(tmp_path) as other:
            result = koila("top", "--once", TMPDIR=str(tmp_path))
            assert result.returncode == 1
            assert str(process.pid) in result.stderr and str(other.pid) in result.stderr


def test_nothing_to_show(tmp_path: pathlib.Path) -> None:
    result = koila("top", "--once", TMPDIR=str(tmp_path))
    assert result.returncode == 1 and "no process runs under koila" in result.stderr
    assert koila("top", str(os.getpid()), TMPDIR=str(tmp_path)).returncode == 1
    assert koila("top", "--interval", "0").returncode == 2
    assert koila("top", "--interval", "soon").stderr == "koila: error: --interval soon is not understood: want a number. See koila top --help\n"


def steps_drawn(text: str) -> set[str]:
    return {part.split()[0] for part in text.split("steps ")[1:] if part.split()}


def frames(text: str) -> list[list[str]]:
    """The lines of each frame that is complete."""
    complete = [frame.split("\033[J")[0] for frame in text.split("\033[H")[1:] if "\033[J" in frame]
    return [re.sub("\033\\[[0-9;]*[mK]|\r", "", frame).split("\n") for frame in complete]


def test_live_until_told_to_end(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as process:
        for ending in (b"q", b"\x03", signal.SIGTERM):
            terminal = Terminal("top", "--interval", "0.1", TMPDIR=str(tmp_path))
            before = terminal.settings()
            # Frames with different numbers of steps: it is live.
            text = terminal.read_until(lambda text: len(steps_drawn(text)) >= 3)
            assert len(steps_drawn(text)) >= 3
            assert "\033[?1049h" in text and "\033[?1049l" not in text
            assert not terminal.settings()[3] & termios.ECHO
            if isinstance(ending, bytes):
                os.write(terminal.end, ending)
            else:
                os.kill(terminal.pid, ending)
            text = terminal.read_until(lambda text: "\033[?1049l" in text)
            assert "\033[?25h" in text
            assert terminal.settings()[3] == before[3]
            assert terminal.exit_status() == 0
        assert process.poll() is None

        terminal = Terminal("top", "--interval", "600", columns=120, TMPDIR=str(tmp_path))
        terminal.read_until(lambda text: "steps " in text)
        terminal.text = ""
        terminal.resize(40, 5)
        text = terminal.read_until(lambda text: any(len(lines) == 5 for lines in frames(text)))  # the rest of a larger one may come before
        assert any(len(lines) == 5 and all(len(line) <= 40 for line in lines) for lines in frames(text)), frames(text)
        os.write(terminal.end, b"q")
        assert terminal.exit_status() == 0


def test_the_end_of_the_process_is_its_last_frame(tmp_path: pathlib.Path) -> None:
    for number, ended in ((signal.SIGKILL, "cut off"), (None, "exited")):
        command = [str(KOILA), "run", "-q", "--report", "off", "--", sys.executable, TINY, "64", "100000" if number else "40", "0.05"]
        with subprocess.Popen(command, env=clean_environment(TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "step 1\n"
            terminal = Terminal("top", str(process.pid), "--interval", "0.1", TMPDIR=str(tmp_path))
            terminal.read_until(lambda text: "steps " in text)
            if number is not None:
                process.send_signal(number)
            process.stdout.read()
            process.wait()
            assert terminal.exit_status() == 0
        last = terminal.text.split("\033[?1049l")[-1]
        assert ended in last and "steps " in last, last


def test_waits_for_a_process(tmp_path: pathlib.Path) -> None:
    waiting = subprocess.Popen([str(KOILA), "top", "--wait"], env=clean_environment(TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None and waiting.stderr.readline() == "koila: waiting for a process under koila\n"
    with training(tmp_path) as process:
        shown, _ = waiting.communicate(timeout=60)
        assert waiting.returncode == 0 and f"pid {process.pid}" in shown and "[#] live" in shown
