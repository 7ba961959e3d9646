"""The five pieces of work that bench_peers.py gives to every alternative, and the two of its curve. Sizes are such that a step takes some 50 ms."""

import dataclasses
import functools
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
import char_gpt  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Work:
    title: str
    rows: int  # of a full batch
    model: object  # () -> module
    data: object  # rows -> tensors, rows first
    loss: object  # (model, *batch) -> scalar
    blocks: object  # model -> the modules that checkpointing is put around
    towers: object = None  # model -> encoders whose embeddings meet in one loss
    epoch: float = 1.0  # rows of the data set over `rows`: with a fraction the last batch is ragged


# ---- a CNN with batch norm ---------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + x)


def conv_bn(inside, outside, stride=1):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())


def cnn(depth=1, width=16):
    stages = [conv_bn(3, width), *(Residual(width) for _ in range(depth)), conv_bn(width, 2 * width, 2), *(Residual(2 * width) for _ in range(depth))]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


def images(rows, size=16):
    return torch.rand(rows, 3, size, size), torch.randint(10, (rows,))


def classification(model, x, y):
    return F.cross_entropy(model(x), y)


# ---- a GPT -------------------------------------------------------------------------------------------------------------------


def text(rows, length=64):
    tokens = torch.randint(96, (rows, length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def next_token(model, x, y):
    return model(x, y)[1]


# ---- BERT --------------------------------------------------------------------------------------------------------------------


def bert():
    from transformers import BertConfig, BertForSequenceClassification
    shape = dict(vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, max_position_embeddings=48, num_labels=3)
    return BertForSequenceClassification(BertConfig(**shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def sentences(rows, length=48):
    mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (rows, 1))).long()
    return torch.randint(200, (rows, length)) * mask, mask, torch.randint(3, (rows,))


def bert_loss(model, ids, mask, labels):
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


# ---- CLIP --------------------------------------------------------------------------------------------------------------------


class TextTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


def clip():
    convolutions = [nn.Sequential(nn.Conv2d(i, o, 3, stride=s, padding=1), nn.GELU()) for i, o, s in ((3, 32, 2), (32, 64, 2), (64, 64, 1))]
    image = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 64))
    return nn.ModuleDict({"image": image, "text": TextTower()})


def pairs(rows):
    return torch.rand(rows, 3, 32, 32), torch.randint(100, (rows, 24))


def contrastive(a, b):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = a @ b.t() / 0.07
    target = torch.arange(len(a))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def clip_loss(model, x, y):
    return contrastive(model["image"](x), model["text"](y))


# ---- a VAE -------------------------------------------------------------------------------------------------------------------


class Vae(nn.Module):
    def __init__(self, width=16, latent=8):
        super().__init__()
        first, second = (nn.Sequential(nn.Conv2d(i, o, 3, stride=s, padding=1), nn.ReLU()) for i, o, s in ((1, width, 1), (width, 2 * width, 2)))
        self.encoder = nn.Sequential(first, second, nn.Flatten(), nn.Linear(2 * width * 64, 2 * latent))
        third = nn.Sequential(nn.Linear(latent, 2 * width * 64), nn.Unflatten(1, (2 * width, 8, 8)), nn.ReLU())
        fourth = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU())
        self.decoder = nn.Sequential(third, fourth, nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(z), mean, log_variance


def gray(rows):
    return (torch.rand(rows, 1, 16, 16),)


def elbo(model, x):
    made, mean, log_variance = model(x)
    divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
    return (F.binary_cross_entropy_with_logits(made, x, reduction="sum") + divergence) / len(x)


# ------------------------------------------------------------------------------------------------------------------------------


def children_of(*names):
    return lambda model: [child for name in names for child in model.get_submodule(name)]


WORKS = {
    "cnn": Work("CNN with batch norm", 256, cnn, images, classification, lambda m: list(m)[:4]),
    "gpt": Work("GPT", 64, functools.partial(char_gpt.Gpt, 96, 64, width=64, layers=2), text, next_token, children_of("blocks")),
    "bert": Work("BERT with Trainer", 64, bert, sentences, bert_loss, lambda m: list(m.bert.encoder.layer)),
    "clip": Work("CLIP, two towers", 128, clip, pairs, clip_loss, lambda m: [*m["image"][:3], *m["text"].layers], towers=lambda m: [m["image"], m["text"]]),
    "vae": Work("VAE, last batch ragged", 256, Vae, gray, elbo, lambda m: [m.encoder[0], m.encoder[1], m.decoder[1]], epoch=2.4),
}

# The shapes that others' figures are of, at the scale of a CPU.
CURVE = {
    "resnet": Work("ResNet, 38 convolutions with batch norm", 64, functools.partial(cnn, depth=9, width=8), images, classification, lambda m: list(m)[:-3]),
    "transformer": Work("transformer of 6 layers", 16, functools.partial(char_gpt.Gpt, 96, 64, width=64, layers=6), text, next_token, children_of("blocks")),
}
