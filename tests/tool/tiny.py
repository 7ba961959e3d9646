"""A small training run: `tiny.py BATCH STEPS [SECONDS]`, which waits so long after each step."""

import sys
import time

import torch
from torch import nn

batch, steps = int(sys.argv[1]), int(sys.argv[2])
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    x = torch.randn(batch, 64)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    print(f"step {step + 1}", flush=True)
    time.sleep(pause)
