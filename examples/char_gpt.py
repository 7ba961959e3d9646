"""A small GPT that learns to write like Python's manual, one character at a time."""

import argparse
from pydoc_data.topics import topics  # Python's language reference, as help() shows it

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, width=128, layers=4, heads=4):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self.initialise)
        self.head.weight = self.token.weight  # tied

    @staticmethod
    def initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets=None):
        T = tokens.size(1)
        x = self.token(tokens) + self.position(torch.arange(T, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="PATH", help="write losses, parameters and the last gradients there")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(text))
    number = {character: i for i, character in enumerate(alphabet)}
    data = torch.tensor([number[character] for character in text])
    train, test = data[:-20_000], data[-20_000:]

    def batch(source, rows):
        starts = torch.randint(len(source) - args.context - 1, (rows,)).tolist()
        x = torch.stack([source[i:i + args.context] for i in starts])
        y = torch.stack([source[i + 1:i + 1 + args.context] for i in starts])
        return x, y

    model = Gpt(len(alphabet), args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    losses = []
    for step in range(1, args.steps + 1):
        x, y = batch(train, args.batch)
        logits, loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 5 == 0 or step == 1:
            print(f"step {step:3}  loss {loss.item():.4f}", flush=True)

    model.eval()
    with torch.no_grad():
        held_out = sum(model(*batch(test, 8))[1].item() for _ in range(4)) / 4
    print(f"held-out loss {held_out:.4f}")
    if args.save:
        torch.save({
            "losses": losses,
            "parameters": {name: p.detach() for name, p in model.named_parameters()},
            "gradients": {name: p.grad for name, p in model.named_parameters()},
            "buffers": dict(model.named_buffers()),
        }, args.save)


if __name__ == "__main__":
    main()
