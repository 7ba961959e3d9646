"""A training loop whose bytes of each kind can be counted by hand; the last line of its output says what they are.

    accounts.py OPTIMIZER [DEVICE]
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import torch

device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
if device != "cpu":
    sys.path.append(str(Path(__file__).resolve().parent.parent / "cuda" / "device"))
    import sim_cuda  # noqa: F401

ROWS, WIDTH, HIDDEN = 2048, 256, 512


def nbytes(tensors):
    return sum(t.untyped_storage().nbytes() for t in tensors)


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH)).to(device)
optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=1e-3)
for _ in range(5):
    data, target = torch.randn(ROWS, WIDTH, device=device), torch.randn(ROWS, WIDTH, device=device)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(data), target)
    loss.backward()
    optimizer.step()
state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value) and value.device.type == device]
print(
    json.dumps(
        {
            "parameters": nbytes(model.parameters()),
            "gradients": nbytes(p.grad for p in model.parameters()),
            "optimizer_state": nbytes(state),
            "inputs": nbytes([data, target]),
            # Alive when backward begins: what the ReLU gives (the layer before it keeps nothing of its own), what the second layer gives, and the loss.
            "activations": 4 * ROWS * (HIDDEN + WIDTH) + 4,
        }
    ),
    flush=True,
)
if device != "cpu":  # PyTorch's threads for devices do not always survive Python's end
    ctypes.CDLL(None).koila_write_report(os.environ["KOILA_REPORT"].encode())
    os._exit(0)
