"""koila doctor, on cases made up to fail."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from command import LIBRARY, MLP, clean_environment, koila, make_executable


def compiled(path: pathlib.Path, code: str, *options: str) -> str:
    subprocess.run(["g++", "-x", "c", "-", "-o", str(path), *options], input=code, text=True, check=True)
    return str(path)


def library_folder(tmp_path: pathlib.Path, version: str | None) -> str:
    """A folder with libkoila.so and an adapter said to be for another torch, or with none."""
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(LIBRARY, folder)
    if version is not None:
        (folder / "libkoila_torch.so").touch()
        (folder / "libkoila_torch.version").write_text(version + "\n")
    return str(folder)


def test_nothing_is_wrong_with_an_example() -> None:
    result = koila("doctor", "--", sys.executable, MLP)
    assert result.returncode == 0, result.stdout
    assert "problem " not in result.stdout.replace("no problem found", "")
    assert "with torch 2." in result.stdout


def test_a_cpu_without_a_budget() -> None:
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("a GPU is a limit")
    result = koila("doctor", "--", sys.executable, MLP)
    assert "no budget is set" in result.stdout and "--cpu-memory auto" in result.stdout
    assert "no budget is set" not in koila("doctor", "--cpu-memory", "auto", "--", sys.executable, MLP).stdout
    assert "warning: the program computes on the CPU, and no budget is set" in koila("run", "--", sys.executable, "-c", "1").stderr


def test_json(tmp_path: pathlib.Path) -> None:
    result = koila("doctor", "--json", "--library", library_folder(tmp_path, "2.0.1"), "--", sys.executable, MLP)
    found = json.loads(result.stdout)
    assert result.returncode == 1 and found["ok"] is False
    (problem,) = [finding for finding in found["findings"] if finding["verdict"] == "problem"]
    assert "the adapter is for torch 2.0.1" in problem["what"] and "pip install ." in problem["do"]


def test_adapter_for_another_torch(tmp_path: pathlib.Path) -> None:
    result = koila("doctor", "--library", library_folder(tmp_path, "2.0.1"), "--", sys.executable, MLP)
    assert result.returncode == 1
    assert "and the adapter is for torch 2.0.1: koila would stay out" in result.stdout


def test_no_adapter(tmp_path: pathlib.Path) -> None:
    result = koila("doctor", "--library", library_folder(tmp_path, None), "--", sys.executable, MLP)
    assert result.returncode == 1 and "has no adapter beside it" in result.stdout


def test_static_program(tmp_path: pathlib.Path) -> None:
    try:
        program = compiled(tmp_path / "static", "int main(void) { return 0; }", "-static")
    except subprocess.CalledProcessError:
        pytest.skip("this system has no static C library")
    result = koila("doctor", "--", program)
    assert result.returncode == 1 and "is statically linked" in result.stdout


def test_static_cudart(tmp_path: pathlib.Path) -> None:
    code = "__attribute__((visibility(\"hidden\"))) int cudaMalloc(void** p, unsigned long n) { return p != 0 && n > 0; }\n" \
           "int main(void) { return cudaMalloc(0, 0); }"
    program = compiled(tmp_path / "own_cudart", code)
    result = koila("doctor", "--", program)
    assert result.returncode == 1 and "has CUDA's runtime linked in statically" in result.stdout
    # Without its symbols, its error texts give it away.
    text = "const char* volatile text = \"CUDA driver version is insufficient for CUDA runtime version\"; int main(void) { return !text; }"
    assert "has CUDA's runtime linked in statically" in koila("doctor", "--", compiled(tmp_path / "stripped", text, "-s")).stdout


def test_setuid_program(tmp_path: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a program of another user")
    program = compiled(tmp_path / "setuid", "int main(void) { return 0; }")
    os.chown(program, 65534, 65534)
    os.chmod(program, 0o4755)
    result = koila("doctor", "--", program)
    assert result.returncode == 1 and "gains rights when it starts" in result.stdout


def test_wrappers_wrong_variables_and_missing_programs(tmp_path: pathlib.Path) -> None:
    sudo = make_executable(tmp_path / "sudo", "#!/bin/sh\n")
    result = koila("doctor", "--mode", "fast", "--", sudo, "python")
    assert result.returncode == 1
    assert "sudo does not hand LD_PRELOAD on" in result.stdout
    assert "KOILA_MODE=fast is not understood" in result.stdout
    missing = koila("doctor", "--", "no-such-program")
    assert missing.returncode == 1 and "no-such-program: command not found" in missing.stdout


def test_no_place_for_a_record(tmp_path: pathlib.Path) -> None:
    (tmp_path / f"koila-{os.getuid()}").write_text("in the way")
    nowhere = {"TMPDIR": str(tmp_path), "HOME": "", "XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": ""}
    assert "no record can be kept" in koila("doctor", "--", "true", **nowhere).stdout
    elsewhere = koila("doctor", "--", "true", **nowhere | {"HOME": str(tmp_path)}).stdout
    assert "is not a folder; records are kept in " in elsewhere and "no record can be kept" not in elsewhere
    assert "no record can be kept" not in koila("doctor", "--", "true", TMPDIR=str(tmp_path), KOILA_RECORD="off").stdout


def test_python_without_torch(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    result = koila("doctor", "--", sys.executable, "-S", str(script))
    assert result.returncode == 1 and "has no torch" in result.stdout


def waiting_for_input(code: str, **variables: str) -> subprocess.Popen[str]:
    """A Python that has run the code, and ends when its stdin does."""
    process = subprocess.Popen([sys.executable, "-c", code + "\nprint('ready', flush=True)\ninput()"], env=clean_environment(**variables),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_running_processes() -> None:
    with waiting_for_input("import torch", LD_PRELOAD=str(LIBRARY)) as attached:
        result = koila("doctor", str(attached.pid))
        assert result.returncode == 0 and "its adapter" in result.stdout and "is loaded for torch 2." in result.stdout
        attached.communicate("\n")
    with waiting_for_input("1") as without:
        result = koila("doctor", str(without.pid))
        assert result.returncode == 1 and "koila is not loaded in process" in result.stdout
        without.communicate("\n")
    with waiting_for_input("import torch", LD_PRELOAD=str(LIBRARY), KOILA_MODE="off") as off:
        result = koila("doctor", str(off.pid))
        assert result.returncode == 1 and "KOILA_MODE=off" in result.stdout
        off.communicate("\n")
