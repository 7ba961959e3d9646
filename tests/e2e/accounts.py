"""A training loop whose bytes of each kind can be counted by hand; the last line of its output says what they are.

    accounts.py OPTIMIZER [STEPS]
"""

import json
import sys

import torch

ROWS, WIDTH, HIDDEN = 2048, 256, 512


def nbytes(tensors):
    return sum(t.untyped_storage().nbytes() for t in tensors)


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH))
optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=1e-3)
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5):
    data, target = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(data), target)
    loss.backward()
    optimizer.step()
state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
print(
    json.dumps(
        {
            "parameters": nbytes(model.parameters()),
            "gradients": nbytes(p.grad for p in model.parameters()),
            "optimizer_state": nbytes(state),
            "inputs": nbytes([data, target]),
            # Alive when backward begins: what the first layer and the ReLU give, what the second gives, and the loss.
            "activations": 4 * ROWS * (2 * HIDDEN + WIDTH) + 4,
        }
    )
)
