"""Fine-tuning as it is done with little memory: 4-bit weights (bitsandbytes), adapters (PEFT), Hugging Face's Trainer, with and without gradient checkpointing. Half of what it takes is enough, with what a CUDA device has (rungs 0 and 1)."""

import importlib.util

import pytest

from harness import differences, koila_environment
from test_trainers import Script

MISSING = [name for name in ("bitsandbytes", "peft", "transformers", "accelerate") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
TOLERANCE = 1e-4  # all of it is in single precision


class FourBit(Script):
    def __init__(self, checkpoints, folder):
        self.checkpoints = checkpoints
        super().__init__("four_bit", 1, folder)

    def arguments(self):
        return ["--checkpoints"] if self.checkpoints else []

    def wrong(self, found):
        return differences(self.expected, found, TOLERANCE)


@pytest.mark.parametrize("checkpoints", [False, True], ids=["activations", "checkpoints"])
def test_at_half_the_memory(checkpoints, tmp_path):
    script = FourBit(checkpoints, tmp_path)
    process, report, found = script.run(koila_environment("rescue", KOILA_LADDER="0,1", KOILA_CPU_MEMORY=f"{script.budget(0.5)}B"))
    assert process.returncode == 0, process.stderr[-3000:]
    assert not script.wrong(found), script.wrong(found)[:5]
    assert report["rescues"] > 0 and report["devices"]["cpu"]["peak_bytes"] <= script.budget(0.5)
    assert not any("bitsandbytes" in op["op"] or "MatMul4Bit" in op["op"] for op in report["full_batch_ops"]), report["full_batch_ops"]
