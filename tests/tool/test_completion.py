"""Shell completion, the manual page, and the help texts."""

import gzip
import pathlib
import shutil
import subprocess

import pytest
from command import KOILA, ROOT, clean_environment, koila

COMMANDS = ["run", "report", "top", "probe", "doctor", "jupyter", "completion"]


def completed(*words: str, cwd: pathlib.Path) -> list[str]:
    """What bash offers behind these words."""
    script = f"source <(koila completion bash)\nCOMP_WORDS=(koila {' '.join(words)})\nCOMP_CWORD={len(words)}\n_koila\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    environment = clean_environment(PATH=f"{KOILA.parent}:/usr/bin:/bin")
    done = subprocess.run(["bash", "--norc", "-c", script], env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_and_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.json").touch()
    assert completed("''", cwd=tmp_path) == COMMANDS
    assert completed("re", cwd=tmp_path) == ["report"]
    assert completed("run", "--cpu", cwd=tmp_path) == ["--cpu-memory"]
    assert completed("top", "--w", cwd=tmp_path) == ["--wait"]
    assert completed("report", "ru", cwd=tmp_path) == ["run.json"]
    assert "--mode" not in completed("run", "--", "--mo", cwd=tmp_path), "behind -- the words are the program's"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_theirs(shell: str, tmp_path: pathlib.Path) -> None:
    script = koila("completion", shell).stdout
    assert "koila --list-commands" in script
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here to read it")
    (tmp_path / "script").write_text(script)
    assert subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True).returncode == 0


def test_every_option_is_listed() -> None:
    assert koila("--list-commands").stdout.split() == COMMANDS
    for command in COMMANDS:
        listed = koila(command, "--list-options").stdout.split()
        assert "--help" in listed
        if command in ("run", "doctor", "probe"):
            assert "--cpu-memory" in listed and "--library" in listed


def test_the_list_of_variables_is_in_one_help() -> None:
    for command in COMMANDS:
        text = koila(command, "--help").stdout
        assert ("--spill-dir" in text) == (command == "run"), command
        assert ("koila run --help" in text) == (command in ("doctor", "jupyter", "probe")), command


def test_wrong_use() -> None:
    result = koila("completion", "tcsh")
    assert result.returncode == 2 and "bash, zsh or fish" in result.stderr


def test_the_manual_page_has_every_command() -> None:
    page = ROOT / "build" / "tool" / "koila.1"
    text = (gzip.decompress(page.read_bytes()).decode() if page.suffix == ".gz" else page.read_text()).replace("\\-", "-")
    assert text.startswith(".TH KOILA 1")
    for command in COMMANDS:
        assert f'.SH "KOILA {command.upper()}"' in text
    assert "--cpu-memory" in text and "KOILA_LADDER=3" in text
    if shutil.which("groff") is not None:
        done = subprocess.run(["groff", "-man", "-Tascii", "-ww", str(page)], capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == "", done.stderr
