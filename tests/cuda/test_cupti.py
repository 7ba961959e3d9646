"""KOILA_CUPTI=1 in a whole process: the preload over the simulated CUDA with the tests' CUPTI, and the toolkit's CUPTI where there is no GPU."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ.get("BUILD", pathlib.Path(__file__).parents[2] / "build"))
FAKE_CUPTI = BUILD / "tests/cuda/cupti"
SIMULATED_CUDA = BUILD / "tests/cuda/sim/plain"
REAL_CUPTI = [path for path in ("/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64") if pathlib.Path(path, "libcupti.so.13").exists()]

PROGRAM = """
import ctypes, sys, time
ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
here = ctypes.CDLL(None)
address = ctypes.c_void_p()
before = time.monotonic()
for _ in range(3):
    status = here.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(1 << 20))
print("cudaMalloc", status, flush=True)
if len(sys.argv) > 1:
    class Record(ctypes.Structure):
        _fields_ = [("kind", ctypes.c_int), ("operation", ctypes.c_int), ("memory", ctypes.c_int), ("correlation", ctypes.c_uint),
                    ("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("rest", ctypes.c_uint64 * 11), ("source", ctypes.c_char_p)]
    cupti = ctypes.CDLL("libcupti.so.13")
    for where, source in ((address.value, b"/usr/lib/libkoila.so"), (0x1000, b"/usr/lib/libcublas.so.13")):
        record = Record(kind=49, operation=1, memory=3, address=where, bytes=1 << 20, source=source)
        cupti.fake_cupti_record(ctypes.byref(record))
    cupti.fake_cupti_deliver()
"""


def run(tmp_path, libraries, *arguments, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    report = tmp_path / "report.json"
    result = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60,
                            env=clean | {"LD_PRELOAD": str(BUILD / "lib/libkoila.so"), "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
                                         "KOILA_REPORT": str(report)} | variables)
    notes = json.loads(report.read_text())["notes"] if report.exists() else None
    return result, [line for line in result.stderr.splitlines() if line], notes


def needs(*paths):
    return pytest.mark.skipif(not all(pathlib.Path(path).exists() for path in paths), reason="not built: needs CUDA's headers")


@needs(FAKE_CUPTI / "libcupti.so.13", SIMULATED_CUDA / "libcudart.so.13")
def test_the_report_names_what_no_hook_saw(tmp_path):
    result, lines, notes = run(tmp_path, [SIMULATED_CUDA, FAKE_CUPTI], "records", KOILA_CUPTI="1")
    assert (result.returncode, lines) == (0, []), result.stderr
    assert "cudaMalloc 0" in result.stdout
    assert notes == ["by CUPTI: 1.0 MiB on cuda:0 not seen by the hooks: cublas 1.0 MiB"]


@needs(FAKE_CUPTI / "libcupti.so.13", SIMULATED_CUDA / "libcudart.so.13")
@pytest.mark.parametrize("mode", ["subscribed", "no_device", "no_memory2"])
def test_a_cupti_that_refuses_is_one_warning(tmp_path, mode):
    result, lines, notes = run(tmp_path, [SIMULATED_CUDA, FAKE_CUPTI], KOILA_CUPTI="1", FAKE_CUPTI=mode)
    assert result.returncode == 0 and "cudaMalloc 0" in result.stdout
    assert len(lines) == 1 and "KOILA_CUPTI has no effect" in lines[0], lines
    assert notes == []


@needs(FAKE_CUPTI / "libcupti.so.13", SIMULATED_CUDA / "libcudart.so.13")
def test_nothing_is_loaded_that_was_not_asked_for(tmp_path):
    result, lines, notes = run(tmp_path, [SIMULATED_CUDA, FAKE_CUPTI], FAKE_CUPTI="subscribed")
    assert (result.returncode, lines, notes) == (0, [], []), result.stderr


@pytest.mark.skipif(not REAL_CUPTI, reason="no CUPTI of CUDA's toolkit")
@pytest.mark.skipif(pathlib.Path("/dev/nvidia0").exists(), reason="for a machine without a GPU")
@pytest.mark.parametrize("cuda", ["simulated", "real"])
def test_the_real_cupti_without_a_gpu_does_no_harm(tmp_path, cuda):
    libraries = REAL_CUPTI if cuda == "real" else [SIMULATED_CUDA, *REAL_CUPTI]
    result, lines, _ = run(tmp_path, libraries, KOILA_CUPTI="1")
    assert result.returncode == 0 and "cudaMalloc" in result.stdout, result.stderr
    assert len(lines) <= 1 and all("KOILA_CUPTI has no effect" in line for line in lines), lines
    plain, _, _ = run(tmp_path, libraries)
    assert result.stdout == plain.stdout
