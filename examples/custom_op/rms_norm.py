"""Handwritten digits with an operator of one's own, written in C++ (rms_norm.cc), whose placement rule lies in its library:

    ninja -C build examples/custom_op/rms_norm.so
    KOILA_CPU_MEMORY=12MiB LD_PRELOAD=$PWD/build/lib/libkoila.so python examples/custom_op/rms_norm.py
"""

import argparse
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "examples" / "custom_op" / "rms_norm.so"


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.ops.tiny.rms_norm(x, self.weight)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", default=str(LIBRARY))
    parser.add_argument("--save", metavar="PATH", help="write losses, parameters and the last gradients there")
    args = parser.parse_args()

    torch.ops.load_library(args.library)
    torch.manual_seed(args.seed)
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    model = nn.Sequential(nn.Linear(64, 256), RmsNorm(256), nn.SiLU(), nn.Linear(256, 256), RmsNorm(256), nn.SiLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    losses = []
    for step in range(1, args.steps + 1):
        pick = torch.randint(len(images), (args.batch,))
        loss = F.cross_entropy(model(images[pick]), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == 1:
            print(f"step {step:3}  loss {loss.item():.4f}", flush=True)

    if args.save:
        torch.save({
            "losses": losses,
            "parameters": {name: p.detach() for name, p in model.named_parameters()},
            "gradients": {name: p.grad for name, p in model.named_parameters()},
            "buffers": dict(model.named_buffers()),
        }, args.save)


if __name__ == "__main__":
    main()
