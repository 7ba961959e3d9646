"""Adapters that are trained behind an embedding that is frozen, each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

    koila run --ladder 0,1 -- python tests/e2e/adapters.py NAME...
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint

from under_budgets import Programs, main, train

PROGRAMS = program = Programs()
program.shares = {"adapters_behind_a_frozen_embedding": (0.9, 0.6, 0.4), "adapters_in_checkpoints": (0.8, 0.55, 0.45, 0.4)}


class Adapted(nn.Module):
    """A projection that is frozen, and what is trained beside it."""

    def __init__(self):
        super().__init__()
        self.frozen, self.down, self.up = nn.Linear(32, 32, bias=False), nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class AdaptedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.v, self.out = nn.LayerNorm(32), Adapted(), Adapted(), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 96), nn.SiLU(), nn.Linear(96, 32))
        for module in (self.norm, self.out, self.mlp):
            module.requires_grad_(False)

    def forward(self, h, cos, sin):
        x = self.norm(h)
        q, v = (y.view(*x.shape[:2], 2, 16).transpose(1, 2) for y in (self.q(x), self.v(x)))
        q = q * cos + torch.cat((-q[..., 8:], q[..., :8]), -1) * sin
        h = h + self.out(F.scaled_dot_product_attention(q, q, v, is_causal=True).transpose(1, 2).reshape(h.shape))
        return h + self.mlp(h)


def adapters(out, run):
    """Adapters behind an embedding that is frozen. A hook makes a leaf of its result (enable_input_require_grads()), which was taken for a parameter, and the positions for the batch."""
    embed, blocks, head = nn.Embedding(30, 32), nn.ModuleList([AdaptedBlock(), AdaptedBlock()]), nn.Linear(32, 30)
    embed.requires_grad_(False)
    head.requires_grad_(False)
    embed.register_forward_hook(lambda module, inputs, result: result.requires_grad_(True))
    frequencies = 1e4 ** (-torch.arange(0, 16, 2) / 16)

    def loss():
        x = torch.randint(30, (32, 12))
        h = embed(x)
        positions = torch.arange(12).unsqueeze(0)
        angles = (frequencies[None, :, None] @ positions[:, None, :].to(h.dtype)).transpose(1, 2)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        for block in blocks:
            h = run(block, h, cos, sin)
        return F.cross_entropy(head(h)[:, :-1].reshape(-1, 30), x[:, 1:].reshape(-1))

    model = nn.ModuleList([embed, blocks, head])
    train(torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2), out, loss)
    return model


@program
def adapters_behind_a_frozen_embedding(out):
    return adapters(out, lambda block, *inputs: block(*inputs))


@program
def adapters_in_checkpoints(out):
    return adapters(out, lambda block, *inputs: torch.utils.checkpoint.checkpoint(block, *inputs, use_reentrant=False))


if __name__ == "__main__":
    main(PROGRAMS)
