"""Handwritten digits with an operator of one's own, written in Python: scale, shift and gelu in one, which keeps its input only.

Without a rule koila runs it at the full batch. fused_gelu.rules, beside this file, says that every row is on its own:

    KOILA_RULES=examples/custom_op/fused_gelu.rules KOILA_CPU_MEMORY=12MiB LD_PRELOAD=$PWD/build/lib/libkoila.so python examples/custom_op/fused_gelu.py
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


@torch.library.custom_op("fused::scale_shift_gelu", mutates_args=())
def scale_shift_gelu(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return F.gelu((x * scale).add_(shift))


@scale_shift_gelu.register_fake
def _(x, scale, shift):
    return torch.empty_like(x)


@torch.library.custom_op("fused::scale_shift_gelu_backward", mutates_args=())
def scale_shift_gelu_backward(grad: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inner = torch.ops.aten.gelu_backward(grad, (x * scale).add_(shift))
    return inner * scale, (inner * x).flatten(0, -2).sum(0), inner.flatten(0, -2).sum(0)


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    return scale_shift_gelu_backward(grad, *ctx.saved_tensors)


scale_shift_gelu.register_autograd(backward, setup_context=keep_inputs)


class ScaleShiftGelu(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return scale_shift_gelu(x, self.scale, self.shift)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="PATH", help="write losses, parameters and the last gradients there")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    model = nn.Sequential(nn.Linear(64, 256), ScaleShiftGelu(256), nn.Linear(256, 256), ScaleShiftGelu(256), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

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
