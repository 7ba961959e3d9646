"""Ctrl-C: Python ends itself by SIGINT, and koila has told what it has to tell before."""

import json
import signal
import subprocess
import sys

import pytest

from harness import clean_environment, koila_environment

TRAINS = """
import os, signal, sys, threading, torch
net = torch.nn.Linear(64, 64)
for step in range(3):
    net(torch.randn(256, 64)).square().sum().backward()
"""
ENDS = {
    "ctrl_c": "os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(30)",
    "from_a_thread": "threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGINT)).start(); import time; time.sleep(30)",
    "ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGINT)",
    "caught": "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    import time; time.sleep(30)\nexcept KeyboardInterrupt:\n    sys.exit(3)",
    "default": "signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)",
    "child": "import subprocess; subprocess.run([sys.executable, '-c', 'import os, signal; os.kill(os.getpid(), signal.SIGINT)'], stderr=subprocess.DEVNULL)",
}


def run(end, tmp_path, **environment):
    return subprocess.run([sys.executable, "-c", TRAINS + ENDS[end]], env=clean_environment(environment), cwd=tmp_path, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("end", ENDS)
def test_the_report_is_written_once(tmp_path, end):
    plain = run(end, tmp_path)
    report = tmp_path / "report.json"
    done = run(end, tmp_path, **koila_environment("rescue") | {"KOILA_REPORT": f"stderr,{report}"})
    assert done.returncode == plain.returncode == {"ignored": 0, "caught": 3, "blocked": 0, "child": 0}.get(end, -signal.SIGINT)
    assert json.loads(report.read_text())["steps"] == 3
    assert done.stderr.count("koila: 3 steps") == 1, done.stderr
    assert done.stdout == plain.stdout
