"""The figures of the report against others': the program's own count, PyTorch's profiler, the kernel's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIBRARY, ROOT, clean_environment
from selection import only

FOLDER = Path(__file__).parent
KERNELS = ROOT / "build" / "tests" / "cuda" / "device" / "libsim_cuda_kernels.so"


def run(tmp_path, *command, **variables):
    """The command's last line of output, and its report."""
    report = tmp_path / "report.json"
    environment = clean_environment({"LD_PRELOAD": str(LIBRARY), "KOILA_REPORT": str(report)} | variables)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1], json.loads(report.read_text())


@pytest.mark.parametrize("mode", only(["rescue"], ["track", "rescue"]))
@pytest.mark.parametrize("optimizer", only(["AdamW"], ["SGD", "AdamW"]))
def test_what_is_alive_is_told_by_category(tmp_path, optimizer, mode):
    line, report = run(tmp_path, sys.executable, str(FOLDER / "accounts.py"), optimizer, KOILA_MODE=mode)
    expected, cpu = json.loads(line), report["devices"]["cpu"]
    assert report["steps"] == 5
    peak = cpu["peak_by_category"]
    for name in ("parameters", "inputs", "activations"):
        assert peak[name] == expected[name], name
    # Some numbers that the update made may still be on koila's tape.
    assert 0 <= peak["optimizer_state"] - expected["optimizer_state"] <= 64
    # At the peak the second layer's gradients are there, or not yet.
    assert 0 <= peak["gradients"] <= expected["gradients"]
    assert cpu["peak_bytes"] * 0.98 <= sum(peak.values()) <= cpu["peak_bytes"]


@pytest.mark.skipif(not KERNELS.exists(), reason="needs the simulated device")
def test_tensors_of_a_cuda_device_are_told_by_category(tmp_path):
    line, report = run(tmp_path, sys.executable, str(FOLDER / "accounts.py"), "AdamW", "cuda")
    expected, device = json.loads(line), report["devices"]["cuda:0"]
    peak = device["peak_by_category"]
    for name in ("parameters", "inputs", "activations", "optimizer_state"):
        assert peak[name] == expected[name], name
    # By PyTorch's own allocator, which tells of each tensor.
    assert sum(peak.values()) == device["tensor_peak_bytes"] <= device["peak_bytes"]
    assert sum(device["live_by_category"].values()) == device["tensor_bytes"]
    assert max(device["timeline"]["live_bytes"]) == device["tensor_peak_bytes"]


def test_a_rescued_run_is_told_by_category_too(tmp_path):
    _, whole = run(tmp_path, sys.executable, str(FOLDER / "accounts.py"), "AdamW", KOILA_MODE="track")
    budget = whole["devices"]["cpu"]["peak_bytes"] * 6 // 10  # so that the peak is a rescued step's, and not that of the one that ran out
    line, report = run(tmp_path, sys.executable, str(FOLDER / "accounts.py"), "AdamW", KOILA_CPU_MEMORY=f"{budget}B")
    expected, cpu = json.loads(line), report["devices"]["cpu"]
    assert report["rescues"] > 0
    peak = cpu["peak_by_category"]
    assert peak["parameters"] == expected["parameters"]
    assert peak["activations"] < whole["devices"]["cpu"]["peak_by_category"]["activations"]
    assert budget * 0.9 < sum(peak.values()) <= cpu["peak_bytes"] <= budget


def test_holders_at_the_peak_name_operators_and_lines(tmp_path):
    _, report = run(tmp_path, sys.executable, str(FOLDER / "accounts.py"), "AdamW", KOILA_STACKS="1")
    holders = report["devices"]["cpu"]["holders"]
    relu = [h for h in holders if h["op"] == "aten::relu"]
    assert len(relu) == 1 and relu[0]["bytes"] == 4 * 2048 * 512 and relu[0]["category"] == "activations"
    assert relu[0]["where"].splitlines()[0].startswith("tests/e2e/accounts.py:")
    lines = (FOLDER / "accounts.py").read_text().splitlines()
    number = int(relu[0]["where"].splitlines()[0].split(":")[1].split()[0])
    assert "model(data)" in lines[number - 1]


def test_without_asking_there_are_no_lines(tmp_path):
    _, report = run(tmp_path, sys.executable, str(FOLDER / "accounts.py"), "SGD")
    assert all(holder["where"] == "" for holder in report["devices"]["cpu"]["holders"])


PROFILED = """
import ctypes, torch
sys_live = ctypes.CDLL(None).koila_live_bytes
sys_live.restype = ctypes.c_int64
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
kept = []
before = sys_live(-1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
    for _ in range(3):
        loss = model(torch.randn(32, 3, 8, 8)).sum()
        loss.backward()
        kept.append(torch.ones(1000))
    after = sys_live(-1)
profiled = sum(event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")
print(after - before, profiled)
"""


def test_live_bytes_are_those_of_pytorchs_profiler(tmp_path):
    line, _ = run(tmp_path, sys.executable, "-c", PROFILED, KOILA_MODE="track")
    koilas, profilers = map(int, line.split())
    assert koilas == profilers > 12_000


RESIDENT = """
import ctypes, torch
live = ctypes.CDLL(None).koila_live_bytes
live.restype = ctypes.c_int64
def resident():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))
torch.ones(1)
before = resident()
kept = [torch.ones(1 << 20) for _ in range(64)]
print(resident() - before, live(-1))
"""


def test_live_bytes_are_resident(tmp_path):
    line, _ = run(tmp_path, sys.executable, "-c", RESIDENT, KOILA_MODE="track")
    resident, live = map(int, line.split())
    assert live >= 64 * 4 * (1 << 20)
    assert abs(resident - live) < live / 50
