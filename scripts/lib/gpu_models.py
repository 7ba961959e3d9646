"""The models of scripts/gpu_check, in two sizes: for a GPU, and small ones to try the check itself on a CPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Vit(nn.Module):
    def __init__(self, image, patch, width, layers, heads, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.start = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(x.size(0), -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def mlp(inputs, width, layers, classes):
    sizes = [inputs] + [width] * layers
    hidden = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def cnn(width, classes):
    # Group norm: batch statistics need stages, which koila does not have yet.
    def stage(a, b):
        return [nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.ReLU(inplace=True)]
    return nn.Sequential(*stage(3, width), *stage(width, width), nn.MaxPool2d(2), *stage(width, 2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(2 * width, classes))


def images(rows, size, classes, g):
    return torch.randn(rows, 3, size, size, generator=g), torch.randint(classes, (rows,), generator=g)


def tokens(rows, context, vocabulary, g):
    text = torch.randint(vocabulary, (rows, context + 1), generator=g)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


# Name: (rows, a function that makes the model, a function of rows and generator that makes the batch)
SIZES = {
    "cuda": {
        "mlp": (16384, lambda: mlp(1024, 4096, 3, 100), lambda n, g: (torch.randn(n, 1024, generator=g), torch.randint(100, (n,), generator=g))),
        "cnn": (384, lambda: cnn(64, 10), lambda n, g: images(n, 64, 10, g)),
        "gpt": (48, lambda: Gpt(8192, 256, 512, 6, 8), lambda n, g: tokens(n, 256, 8192, g)),
        "vit": (128, lambda: Vit(64, 8, 384, 6, 6, 100), lambda n, g: images(n, 64, 100, g)),
    },
    "cpu": {
        "mlp": (1024, lambda: mlp(64, 256, 3, 10), lambda n, g: (torch.randn(n, 64, generator=g), torch.randint(10, (n,), generator=g))),
        "cnn": (64, lambda: cnn(16, 10), lambda n, g: images(n, 16, 10, g)),
        "gpt": (16, lambda: Gpt(256, 32, 64, 2, 4), lambda n, g: tokens(n, 32, 256, g)),
        "vit": (32, lambda: Vit(32, 8, 64, 2, 4, 10), lambda n, g: images(n, 32, 10, g)),
    },
}
