"""`import koila` in a process that was started without: before torch, after it, between and within steps; on the CPU and on the simulated device. See Note [Coming late]."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "lib" / "libkoila.so"
SIMULATED = ROOT / "tests" / "cuda" / "device"
KERNELS = ROOT / "build" / "tests" / "cuda" / "device" / "libsim_cuda_kernels.so"
needs_device = pytest.mark.skipif(not KERNELS.exists() or not (ROOT / ".cache" / "c10_cuda" / "libc10_cuda.so").exists(), reason="no libc10_cuda.so of torch's CUDA build")


def python(*words, package=ROOT / "python", **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
    environment |= {"PYTHONPATH": f"{package}:{SIMULATED}", "KOILA_REPORT": "off"} | more
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def run(when, device="cpu", **more):
    done = python(Path(__file__).with_name("import_late.py"), when, device, KOILA_LADDER="0,1", OMP_NUM_THREADS="1", SIM_CAPACITY="64MiB", **more)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@functools.cache
def plain(device):
    return run("never", device)[0]


def assert_alike(found, expected):
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-12)
    assert found["gradients"] == pytest.approx(expected["gradients"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("when", ["before", "after", "model", "step", "graph", "thread"])
def test_a_step_is_rescued(when):
    found, _ = run(when)
    assert_alike(found, plain("cpu"))
    assert found["rescues"] > 0 and set(found["outcomes"]) == {"rescued"}


@needs_device
@pytest.mark.parametrize("when", ["before", "after", "model", "step", "graph"])
def test_a_step_on_a_device_is_rescued(when):
    """What the caching allocator had by then is counted: 24 MiB at the least, which were there before koila in all but the first."""
    found, _ = run(when, "cuda")
    assert_alike(found, plain("cuda"))
    assert found["rescues"] > 0 and set(found["outcomes"]) == {"rescued"} and 16 << 20 <= found["alive"] <= 64 << 20


def test_nothing_comes_where_koila_is_switched_off():
    found, said = run("before", KOILA_MODE="off")
    assert found["loaded"] is False and said == ""
    assert found["losses"] == plain("cpu")["losses"]


def test_under_the_preload_it_is_the_one_that_is_there():
    found, said = run("after", LD_PRELOAD=str(LIBRARY))
    assert_alike(found, plain("cpu"))
    assert found["rescues"] > 0


def test_torch_that_was_loaded_for_all():
    """What is loaded later would find torch's own functions first, so koila stays out, and says what to do."""
    code = "import ctypes, torch\nctypes.CDLL(torch.__path__[0] + '/lib/libtorch_cpu.so', mode=ctypes.RTLD_GLOBAL)\nimport koila\nprint(koila.loaded(), koila.memory())\nprint(torch.ones(3).sum().item())"
    done = python("-c", code)
    assert done.stdout == "True None\n3.0\n", done.stderr
    assert "import koila before torch" in done.stderr


def test_a_library_that_is_not_there(tmp_path):
    """A warning, and the program goes on."""
    shutil.copytree(ROOT / "python" / "koila", tmp_path / "python" / "koila")
    done = python("-c", "import koila\nprint('on')", package=tmp_path / "python")
    assert done.stdout == "on\n" and "koila does nothing in this process: there is no" in done.stderr
