"""koila run: the program is itself, exit status, signals and terminal included, and what it was started with is as asked."""

import json
import os
import pathlib
import pty
import signal
import sys

import pytest
from command import KOILA, LIBRARY, MLP, clean_environment, koila, koila_python, make_executable

SHOW = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('KOILA_') or k == 'LD_PRELOAD'}))"


def test_trains_an_example_under_a_budget(tmp_path: pathlib.Path) -> None:
    report = tmp_path / "run.json"
    result = koila("run", "--cpu-memory", "10MiB", "--report", str(report), "--", sys.executable, MLP, "--steps", "3")
    assert result.returncode == 0, result.stderr
    assert "test accuracy" in result.stdout
    said = result.stderr.splitlines()
    assert any("with torch " in line for line in said)
    assert any(f"{LIBRARY}, whose adapter is for torch " in line for line in said)
    assert json.loads(report.read_text())["rescues"] > 0


def test_options_are_variables() -> None:
    result = koila_python(SHOW, "--mode", "track", "--cpu-memory=2GiB", "--strict", KOILA_LOG="info", KOILA_MODE="off", LD_PRELOAD="")
    assert json.loads(result.stdout) == {
        "KOILA_MODE": "track", "KOILA_CPU_MEMORY": "2GiB", "KOILA_STRICT": "1", "KOILA_LOG": "info", "LD_PRELOAD": str(LIBRARY)}


def test_comes_before_other_preloads(tmp_path: pathlib.Path) -> None:
    other = "/lib/x86_64-linux-gnu/libz.so.1" if os.path.exists("/lib/x86_64-linux-gnu/libz.so.1") else "libm.so.6"
    result = koila_python(SHOW, LD_PRELOAD=other)
    assert json.loads(result.stdout)["LD_PRELOAD"] == f"{LIBRARY}:{other}"


def test_says_nothing_when_asked_to() -> None:
    result = koila_python("1", "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        (["--mode", "fast"], "--mode fast is not understood: want off, track, rescue or lazy"),
        (["--cpu-memory", "200"], "--cpu-memory 200 is not understood: want a size with its unit such as 512MiB, 4G or 1.5GiB (units: B, K, M, G, T, KiB"),
        (["--mdoe", "track"], "no option --mdoe; did you mean --mode?"),
        (["--cpu-memory"], "--cpu-memory wants a value. See koila run --help"),
        (["--qwertyuiop"], "no option --qwertyuiop. See koila run --help"),
        (["--library", "/nonexistent"], "libkoila.so was not found in /nonexistent"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_option_starts_nothing(option: list[str], wanted: str) -> None:
    result = koila_python("print('ran')", *option)
    assert (result.returncode, result.stdout) == (2, "")
    assert wanted in result.stderr


def test_a_wrong_variable_starts_nothing_either() -> None:
    result = koila_python("print('ran')", KOILA_MODE="fast")
    assert (result.returncode, result.stdout) == (2, "")
    assert "KOILA_MODE=fast is not understood" in result.stderr


def test_exit_status_is_the_programs() -> None:
    assert koila_python("import sys; sys.exit(7)").returncode == 7
    assert koila_python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)").returncode == -signal.SIGTERM


def test_exit_status_of_programs_that_do_not_start(tmp_path: pathlib.Path) -> None:
    assert koila("run", "--", "no-such-program").returncode == 127
    plain = tmp_path / "plain"
    plain.write_text("text")
    assert koila("run", "--", str(plain)).returncode == 126
    assert koila("run").returncode == 2


def test_it_is_the_program_and_not_a_parent() -> None:
    """The same process, with the terminal that it was given."""
    pid, terminal = pty.fork()
    if pid == 0:
        code = "import os, sys; print('process', os.getpid(), sys.stdin.isatty(), sys.stdout.isatty())"
        os.execve(str(KOILA), [str(KOILA), "run", "--", sys.executable, "-c", code], clean_environment())
    text = b""
    while True:
        try:
            text += os.read(terminal, 4096)
        except OSError:
            break
    assert os.waitpid(pid, 0)[1] == 0
    assert f"process {pid} True True".encode() in text


def test_torch_is_found_behind_scripts(tmp_path: pathlib.Path) -> None:
    script = make_executable(tmp_path / "train", f"#!{sys.executable}\nprint('ran')\n")
    for command in (["env", "A=b", script], [script], ["nohup", sys.executable, script]):
        result = koila("run", *command)
        assert result.returncode == 0 and "ran" in result.stdout
        assert "with torch 2." in result.stderr, command


def test_torch_is_not_imported_to_find_it(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "version.py").write_text("__version__ = '1.2.3'\n")
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    result = koila("run", "--", sys.executable, str(script))
    assert result.returncode == 0 and result.stdout == "ran\n"
    assert "the program runs torch 1.2.3, and the adapter is for torch" in result.stderr


def test_warns_where_the_preload_would_be_lost(tmp_path: pathlib.Path) -> None:
    sudo = make_executable(tmp_path / "sudo", "#!/bin/sh\nshift\nexec \"$@\"\n")
    result = koila("run", sudo, "-E", "true")
    assert result.returncode == 0
    assert "warning: sudo does not hand LD_PRELOAD on" in result.stderr


def test_help_and_version() -> None:
    assert "koila COMMAND --help" in koila("help").stdout
    assert koila().returncode == 2
    version = koila("--version")
    assert version.returncode == 0 and str(LIBRARY) in version.stdout
    unknown = koila("rnu")
    assert unknown.returncode == 2 and "did you mean koila run?" in unknown.stderr
    assert koila("qwertyuiop").stderr == "koila: error: no command qwertyuiop. See koila help\n"
    assert "no option --halp" in koila("--halp").stderr
    assert "koila report A.json B.json" in koila("compare", "a", "b").stderr
    for name in ("run", "doctor"):
        for words in ((name, "--help"), ("help", name)):
            shown = koila(*words)
            assert shown.returncode == 0 and f"Usage: koila {name}" in shown.stdout and "Examples:" in shown.stdout


def test_a_script_in_the_place_of_python(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    missing = koila("run", "train.py", cwd=tmp_path)
    assert missing.returncode == 127 and "koila run -- python train.py" in missing.stderr
    not_executable = koila("run", "--quiet", "--", str(script))
    assert not_executable.returncode == 126 and f"koila run -- python {script}" in not_executable.stderr
    assert "python" not in koila("run", "nowhere.py", cwd=tmp_path).stderr


def test_a_switch_says_that_it_is_one() -> None:
    shown = " ".join(koila("run", "--help").stdout.split())
    assert "--stacks, or --stacks=0; default: 0" in shown
