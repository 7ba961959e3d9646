"""Training loops of libraries, unmodified, each in a process of its own: with a quarter of the memory that they take, and in micro-batches that they
know nothing of, they log and leave what they do with all of it."""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from harness import HERE, clean_environment, differences, koila_environment
from selection import in_full

MISSING = [name for name in ("transformers", "accelerate", "lightning", "torchvision") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
TOLERANCE = 1e-9  # the loss that a Hugging Face model returns is float32
OF_LOGS = 1e-6


class Script:
    def __init__(self, name, accumulate, folder):
        self.name, self.accumulate, self.folder, self.runs = name, accumulate, folder, 0
        _, self.report, self.expected = self.run(koila_environment("track"))
        assert self.expected, "plain PyTorch fails"

    def run(self, environment):
        """(the process, koila's report, what it saved or None)"""
        self.runs += 1
        saved, report = self.folder / f"{self.runs}.pt", self.folder / f"{self.runs}.json"
        command = [sys.executable, str(HERE / "trainers" / f"{self.name}.py"), "--save", str(saved), "--accumulate", str(self.accumulate), *self.arguments()]
        environment = clean_environment({**environment, "KOILA_REPORT": str(report), "HF_HUB_OFFLINE": "1"})
        process = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=300)
        found = None
        if saved.exists():
            found = torch.load(saved, weights_only=False)
            parameters = {f"final/parameter/{name}": t.detach().numpy() for name, t in found.pop("parameters").items()}
            found = {**{f"log/{name}": torch.tensor(values, dtype=torch.float64).numpy() for name, values in found.items()}, **parameters}
        return process, json.loads(report.read_text()) if report.exists() else None, found

    def arguments(self):
        return []

    def budget(self, share):
        return int(self.report["devices"]["cpu"]["peak_bytes"] * share)

    def wrong(self, found):
        logs, rest = ({k: v for k, v in arrays.items() if k.startswith("log/") == wanted} for arrays in (self.expected,) for wanted in (True, False))
        return (differences(logs, {k: v for k, v in found.items() if k in logs}, OF_LOGS)
                + differences(rest, {k: v for k, v in found.items() if k not in logs}, TOLERANCE))


@pytest.mark.parametrize("name, accumulate", [("hugging_face", 2), in_full(("by_lightning", 2)), in_full(("hugging_face", 1)), ("by_lightning", 1)])
def test_trainer(name, accumulate, tmp_path):
    """One test a script: most of the time goes into starting it."""
    script = Script(name, accumulate, tmp_path)
    process, _, found = script.run(koila_environment("track", KOILA_CPU_MEMORY=f"{script.budget(0.25)}B"))
    assert process.returncode != 0 and found is None and "OutOfMemoryError" in process.stderr

    process, report, found = script.run(koila_environment("rescue", KOILA_CPU_MEMORY=f"{script.budget(0.25)}B"))
    assert process.returncode == 0, process.stderr[-3000:]
    assert not script.wrong(found), script.wrong(found)[:5]
    assert report["rescues"] > 0 and report["devices"]["cpu"]["peak_bytes"] <= script.budget(0.25)

    process, report, found = script.run(koila_environment("rescue", microbatch=5))
    assert process.returncode == 0, process.stderr[-3000:]
    assert not script.wrong(found), script.wrong(found)[:5]
    assert report["regions_total"]["count"] >= 4
