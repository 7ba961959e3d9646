"""Architectures: what people train, at a size where a step takes milliseconds."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from task import Task, family


class Classifier(Task):
    """Rows with a label each; the plainest loss."""

    classes = 10

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


class Vectors(Classifier):
    width = 24
    budget_rows = 1024

    def data(self, rows):
        return torch.randn(rows, self.width), torch.randint(self.classes, (rows,))


class Images(Classifier):
    channels = 3
    size = 12

    def data(self, rows):
        return torch.randn(rows, self.channels, self.size, self.size), torch.randint(self.classes, (rows,))


class Tokens(Classifier):
    vocabulary = 40
    length = 20
    budget_rows = 128

    def data(self, rows):
        return torch.randint(self.vocabulary, (rows, self.length)), torch.randint(self.classes, (rows,))


class LanguageModel(Tokens):
    """Next token, with rows of unequal length: a mean over micro-batches would be wrong."""

    def data(self, rows):
        tokens = torch.randint(self.vocabulary, (rows, self.length + 1))
        x, y = tokens[:, :-1], tokens[:, 1:].clone()
        lengths = torch.randint(1, self.length + 1, (rows, 1))
        y[torch.arange(self.length) >= lengths] = -100
        return x, y

    def loss(self, model, x, y):
        logits = model(x)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1), ignore_index=-100)


# ---- perceptrons and convolutions --------------------------------------------------------------------------------------------


@family
class Mlp(Vectors):
    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))


@family
class MlpWithoutBias(Vectors):
    def model(self):
        return nn.Sequential(nn.Linear(24, 32, bias=False), nn.SiLU(), nn.Linear(32, 10, bias=False), nn.LogSoftmax(dim=-1))

    def loss(self, model, x, y):
        return F.nll_loss(model(x), y)


@family
class Cnn(Images):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.GroupNorm(2, 8)
            self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
            self.drop = nn.Dropout(0.0)
            self.fc = nn.Linear(12 * 9, 10)

        def forward(self, x):
            x = F.relu(self.norm(self.conv1(x)), inplace=True)
            x = F.max_pool2d(x, 2)
            x = F.relu(self.conv2(x), inplace=True)
            x = F.avg_pool2d(x, 2)
            x = x.view(x.size(0), -1) if x.is_contiguous() else x.flatten(1)
            return self.fc(self.drop(x))

    def model(self):
        return self.Net()


@family
class CnnChannelsLast(Cnn):
    def model(self):
        return self.Net().to(memory_format=torch.channels_last)

    def data(self, rows):
        x, y = super().data(rows)
        return x.contiguous(memory_format=torch.channels_last), y


@family
class ResNet(Images):
    """Residual blocks, depthwise and strided convolutions, adaptive pooling; group norm in the place of batch norm."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.depth = nn.Conv2d(width, width, 3, padding=1, groups=width)
            self.norm = nn.GroupNorm(4, width)
            self.point = nn.Conv2d(width, width, 1)

        def forward(self, x):
            out = F.gelu(self.norm(self.depth(x)))
            out = self.point(out)
            out += x
            return out

    def model(self):
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), self.Block(8), nn.SiLU(), self.Block(8),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


@family
class Unet(Task):
    """Skip connections by cat, upsampling, transposed convolution; a pixel-wise loss."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1 = nn.Conv2d(2, 6, 3, padding=1)
            self.down2 = nn.Conv2d(6, 8, 3, padding=1)
            self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
            self.mix = nn.Conv2d(12, 6, 3, padding=1)
            self.out = nn.Conv2d(8, 3, 1)

        def forward(self, x):
            a = F.leaky_relu(self.down1(x), 0.1)
            b = F.elu(self.down2(F.avg_pool2d(a, 2)))
            c = self.mix(torch.cat([self.up(b), a], dim=1))
            small = F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)
            back = F.interpolate(small, size=x.shape[-2:], mode="nearest")
            return self.out(torch.cat((torch.tanh(c), back), 1))

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randn(rows, 2, 10, 10), torch.randint(3, (rows, 10, 10))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


@family
class Autoencoder(Task):
    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose2d(8, 6, 2, stride=2), nn.GELU(), nn.ConvTranspose2d(6, 1, 2, stride=2), nn.Sigmoid())

    def data(self, rows):
        return (torch.rand(rows, 1, 16, 16),)

    def loss(self, model, x):
        return nn.MSELoss()(model(x), x)


@family
class VariationalAutoencoder(Task):
    """The noise is drawn at the size of the batch, so it is the same with and without splitting."""

    budget_rows = 1024

    def model(self):
        return nn.ModuleDict({"encode": nn.Linear(30, 24), "decode": nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 30))})

    def data(self, rows):
        return (torch.rand(rows, 30),)

    def loss(self, model, x):
        mean, log_variance = model["encode"](x).chunk(2, dim=1)
        noise = torch.randn(x.size(0), 12)
        z = mean + noise * torch.exp(0.5 * log_variance)
        rebuilt = F.binary_cross_entropy_with_logits(model["decode"](z), x, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return (rebuilt + divergence) / len(x)

    symmetric = False  # the noise belongs to a position


@family
class Conv1dText(Tokens):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(40, 12, padding_idx=0)
            self.conv1 = nn.Conv1d(12, 12, 3, padding=2, dilation=2)
            self.conv2 = nn.Conv1d(12, 12, 3)
            self.out = nn.Linear(12, 10)

        def forward(self, tokens):
            x = self.embedding(tokens).transpose(1, 2)
            x = F.relu(self.conv1(x))
            x = torch.sigmoid(self.conv2(F.pad(x, (1, 1)))) * x
            return self.out(x.max(dim=2).values)

    def model(self):
        return self.Net()


# ---- transformers ------------------------------------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    def __init__(self, width, heads, by_hand=False, length=20):
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        if self.by_hand:
            weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            weights = weights.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
            y = self.drop(F.softmax(weights, dim=-1)) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(B, T, C))


class GptBlock(nn.Module):
    def __init__(self, width, heads, by_hand):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), SelfAttention(width, heads, by_hand)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GptNet(nn.Module):
    def __init__(self, by_hand=False, vocabulary=40, length=20, width=16, layers=2, heads=2):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads, by_hand) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        positions = torch.arange(0, tokens.size(1), dtype=torch.long, device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@family
class Gpt(LanguageModel):
    def model(self):
        return GptNet()


@family
class GptByHand(LanguageModel):
    def model(self):
        return GptNet(by_hand=True)


@family
class Llama(LanguageModel):
    """RMS norm, rotary positions, grouped queries, SwiGLU."""

    class Block(nn.Module):
        def __init__(self, width=16, heads=4, groups=2, length=20):
            super().__init__()
            self.heads, self.groups, self.head = heads, groups, width // heads
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.Parameter(torch.ones(width))
            self.q = nn.Linear(width, width, bias=False)
            self.k = nn.Linear(width, groups * self.head, bias=False)
            self.v = nn.Linear(width, groups * self.head, bias=False)
            self.o = nn.Linear(width, width, bias=False)
            self.gate, self.up, self.down = (nn.Linear(width, 24, bias=False), nn.Linear(width, 24, bias=False),
                                             nn.Linear(24, width, bias=False))
            angle = torch.outer(torch.arange(length).to(torch.get_default_dtype()), 1e4 ** -torch.arange(0, 1, 2 / self.head))
            angle = torch.cat((angle, angle), dim=-1)
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

        def rotate(self, x):
            half = x.shape[-1] // 2
            turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
            return x * self.cos + turned * self.sin

        def forward(self, x):
            B, T, C = x.shape
            h = self.norm1(x)
            q = self.rotate(self.q(h).view(B, T, self.heads, -1).transpose(1, 2))
            k = self.rotate(self.k(h).view(B, T, self.groups, -1).transpose(1, 2))
            v = self.v(h).view(B, T, self.groups, -1).transpose(1, 2)
            times = self.heads // self.groups
            k = k[:, :, None].expand(B, self.groups, times, T, self.head).reshape(B, self.heads, T, self.head)
            v = v.repeat_interleave(times, dim=1)
            mask = torch.full((T, T), float("-inf")).triu(1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + self.o(y.transpose(1, 2).reshape(B, T, C))
            h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm2
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Net(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.token = nn.Embedding(40, 16)
            self.blocks = nn.ModuleList([block(), block()])
            self.head = nn.Linear(16, 40, bias=False)

        def forward(self, tokens):
            x = self.token(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def model(self):
        return self.Net(self.Block)

    def loss(self, model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@family
class Vit(Images):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(3, 16, 3, stride=3)
            self.cls = nn.Parameter(torch.zeros(1, 1, 16))
            self.position = nn.Parameter(torch.randn(1, 17, 16) * 0.02)
            self.norm1, self.norm2, self.norm3 = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
            self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            self.scale = nn.Parameter(1e-1 * torch.ones(16))
            self.head = nn.Linear(16, 10)

        def forward(self, x):
            B = x.shape[0]
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(B, -1, -1), x], dim=1) + self.position
            h = self.norm1(x)
            q, k, v = self.qkv(h).reshape(B, 17, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
            h = F.scaled_dot_product_attention(q, k, v)
            x = x + self.scale * self.out(h.transpose(1, 2).reshape(B, 17, 16))
            x = x + self.mlp(self.norm2(x))
            return self.head(self.norm3(x)[:, 0])

    def model(self):
        return self.Net()

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.1)


@family
class BertBatchFirst(Tokens):
    batch_first = True

    class Net(nn.Module):
        def __init__(self, batch_first):
            super().__init__()
            self.batch_first = batch_first
            self.token = nn.Embedding(40, 16, padding_idx=0)
            self.position = nn.Parameter(torch.randn(20, 16) * 0.1)
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=batch_first)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 10)

        def forward(self, tokens):
            padding = tokens == 0  # [B, T]
            x = self.token(tokens) + self.position
            if not self.batch_first:
                x = x.transpose(0, 1)
            x = self.encoder(x, src_key_padding_mask=padding)
            return self.head(x[:, 0] if self.batch_first else x[0])

    def model(self):
        return self.Net(self.batch_first)

    def data(self, rows):
        x, y = super().data(rows)
        lengths = torch.randint(3, self.length + 1, (rows, 1))
        return x.masked_fill(torch.arange(self.length) >= lengths, 0), y


@family
class BertTimeMajor(BertBatchFirst):
    batch_first = False


@family
class EncoderDecoder(Tokens):
    """nn.Transformer, with a causal mask and both padding masks."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(40, 16)
            self.transformer = nn.Transformer(16, 2, 1, 1, 24, dropout=0.0, batch_first=True, norm_first=True)
            self.head = nn.Linear(16, 40)

        def forward(self, source, target):
            mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), dtype=self.head.weight.dtype)
            out = self.transformer(self.token(source), self.token(target), tgt_mask=mask, tgt_is_causal=True,
                                   src_key_padding_mask=source.eq(0), memory_key_padding_mask=source.eq(0))
            return self.head(out)

    def model(self):
        return self.Net()

    def data(self, rows):
        source = torch.randint(self.vocabulary, (rows, 12))
        source[:, 0] = 1
        target = torch.randint(self.vocabulary, (rows, 9))
        return source, target[:, :-1], target[:, 1:]

    def loss(self, model, source, target, label):
        logits = model(source, target)
        return F.cross_entropy(logits.reshape(-1, 40), label.reshape(-1), ignore_index=0)


@family
class LabelsShiftedInPlace(EncoderDecoder):
    """The decoder's input is made of the labels, in place, and the last write is one that no seed may go without."""

    def data(self, rows):
        source, _, target = super().data(rows)
        return source, target.masked_fill(target < 3, -100)

    def loss(self, model, source, labels):
        shifted = labels.new_zeros(labels.shape)
        shifted[:, 1:] = labels[:, :-1].clone()
        shifted[:, 0] = 1
        shifted.masked_fill_(shifted == -100, 0)
        return F.cross_entropy(model(source, shifted).view(-1, 40), labels.view(-1))


@family
class ConnectionistTemporal(Task):
    """CTC, with lengths that the model computes."""

    splits = False

    def model(self):
        return nn.Sequential(nn.Conv1d(3, 16, 3, padding=1), nn.GELU(), nn.Conv1d(16, 8, 3, stride=2))

    def data(self, rows):
        lengths = torch.randint(12, 21, (rows,))
        mask = torch.arange(20) < lengths[:, None]
        labels = torch.randint(1, 8, (rows, 3))
        return torch.randn(rows, 3, 20), mask, labels.masked_fill(torch.rand(rows, 3) < 0.2, -100)

    def loss(self, model, x, mask, labels):
        scores = model(x * mask[:, None].to(x.dtype)).transpose(1, 2)
        steps = (mask.sum(-1) - 3) // 2 + 1
        present = labels >= 0
        log_probs = F.log_softmax(scores, -1).transpose(0, 1)
        return F.ctc_loss(log_probs, labels.masked_select(present), steps, present.sum(-1), zero_infinity=True)


@family
class MultiheadAttention(Task):
    budget_rows = 128

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
            self.pool = nn.MultiheadAttention(16, 2, kdim=8, vdim=8, batch_first=True)
            self.query = nn.Parameter(torch.randn(1, 3, 16))
            self.head = nn.Linear(48, 5)

        def forward(self, x, context):
            x = x + self.attention(x, x, x, need_weights=False)[0]
            y, weights = self.pool(self.query.expand(x.size(0), -1, -1) + x.mean(1, keepdim=True), context, context)
            return self.head(y.flatten(1)), weights

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randn(rows, 12, 16), torch.randn(rows, 9, 8), torch.randint(5, (rows,))

    def loss(self, model, x, context, y):
        logits, weights = model(x, context)
        return F.cross_entropy(logits, y) + 0.1 * (weights * weights).sum(-1).mean()


@family
class Perceiver(Task):
    """Latent queries are a parameter expanded to the batch; einsum attention."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.latent = nn.Parameter(torch.randn(5, 12))
            self.key, self.value, self.out = nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(60, 4)

        def forward(self, x):
            k, v = self.key(x), self.value(x)
            weights = torch.einsum("lc,btc->blt", self.latent, k).softmax(-1)
            z = torch.einsum("blt,btc->blc", weights, v)
            z = torch.tanh(z + self.latent.unsqueeze(0).repeat(x.shape[0], 1, 1))
            return self.out(torch.flatten(z, start_dim=1))

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randn(rows, 30, 6), torch.randint(4, (rows,))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


# ---- recurrent and embeddings ------------------------------------------------------------------------------------------------


class RecurrentNet(nn.Module):
    def __init__(self, kind, batch_first, **kwargs):
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Embedding(40, 12)
        self.rnn = kind(12, 16, batch_first=batch_first, **kwargs)
        self.head = nn.Linear(16 * (2 if kwargs.get("bidirectional") else 1), 10)

    def forward(self, tokens):
        x = self.embedding(tokens if self.batch_first else tokens.t())
        out, _ = self.rnn(x)
        return self.head(out[:, -1] if self.batch_first else out[-1])


@family
class LstmBatchFirst(Tokens):
    def model(self):
        return RecurrentNet(nn.LSTM, True)


@family
class LstmTimeMajor(Tokens):
    def model(self):
        return RecurrentNet(nn.LSTM, False, num_layers=2, bidirectional=True)


@family
class LstmState(LanguageModel):
    """An initial state of zeros at the size of the batch, and the last hidden state used."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.head = nn.Embedding(40, 12), nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 40)

        def forward(self, tokens):
            B = tokens.size(0)
            state = (torch.zeros(1, B, 16), torch.zeros(1, B, 16))
            out, (h, c) = self.lstm(self.embedding(tokens), state)
            return self.head(out + h[-1].unsqueeze(1) + 0.1 * c.squeeze(0)[:, None])

    def model(self):
        return self.Net()


@family
class GruBatchFirst(Tokens):
    def model(self):
        return RecurrentNet(nn.GRU, True, num_layers=2)


@family
class GruTimeMajor(Tokens):
    def model(self):
        return RecurrentNet(nn.GRU, False)


@family
class CellLoop(Tokens):
    """An LSTM cell in a Python loop, the outputs stacked."""

    length = 10

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.cell, self.head = nn.Embedding(40, 8), nn.LSTMCell(8, 12), nn.Linear(12, 10)

        def forward(self, tokens):
            x = self.embedding(tokens)
            h = x.new_zeros(x.size(0), 12)
            c = torch.zeros_like(h)
            outs = []
            for t in range(x.size(1)):
                h, c = self.cell(x[:, t], (h, c))
                outs.append(h)
            return self.head(torch.stack(outs, dim=1).mean(1))

    def model(self):
        return self.Net()


@family
class PackedSequence(Tokens):
    """Rows of unequal length through pack_padded_sequence: the batch is no longer a dimension."""

    splits = False
    symmetric = False

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.head = nn.Embedding(40, 12), nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 10)

        def forward(self, tokens, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return self.head(out.sum(1))

    def model(self):
        return self.Net()

    def data(self, rows):
        x, y = super().data(rows)
        return x, y, torch.randint(1, self.length + 1, (rows,))

    def loss(self, model, x, y, lengths):
        return F.cross_entropy(model(x, lengths), y)


@family
class EmbeddingMean(Tokens):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.hidden, self.head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 10)

        def forward(self, tokens):
            mask = (tokens != 0).unsqueeze(-1).to(self.head.weight.dtype)
            x = torch.tanh(self.hidden(self.embedding(tokens))) * mask
            return self.head(x.sum(dim=1) / mask.sum(dim=1).clamp(min=1))

    def model(self):
        return self.Net()


@family
class EmbeddingBag(Tokens):
    splits = False
    vocabulary = 40

    def model(self):
        return nn.Sequential(nn.EmbeddingBag(40, 16, mode="mean"), nn.Tanh(), nn.Linear(16, 10))


@family
class EmbeddingBagRagged(Tokens):
    splits = False
    symmetric = False

    def model(self):
        return nn.ModuleDict({"bag": nn.EmbeddingBag(40, 16, mode="sum"), "head": nn.Linear(16, 10)})

    def data(self, rows):
        lengths = torch.randint(1, 7, (rows,))
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
        return torch.randint(40, (int(lengths.sum()),)), offsets, torch.randint(10, (rows,))

    def loss(self, model, tokens, offsets, y):
        return F.cross_entropy(model["head"](torch.tanh(model["bag"](tokens, offsets))), y)


# ---- several inputs ----------------------------------------------------------------------------------------------------------


@family
class TwoTowers(Task):
    budget_rows = 512

    def model(self):
        def tower(width):
            return nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, 12))

        return nn.ModuleDict({"left": tower(20), "right": tower(14)})

    def data(self, rows):
        return torch.randn(rows, 20), torch.randn(rows, 14), torch.rand(rows)

    def loss(self, model, a, b, y):
        return F.mse_loss(F.cosine_similarity(model["left"](a), model["right"](b)), y)


@family
class TwoTowersBinary(TwoTowers):
    def loss(self, model, a, b, y):
        left, right = F.normalize(model["left"](a), dim=1), F.normalize(model["right"](b), dim=1)
        return F.binary_cross_entropy(torch.sigmoid((left * right).sum(1)), (y > 0.5).to(left.dtype))


@family
class Triplet(Task):
    """One tower, three inputs."""

    budget_rows = 512

    def model(self):
        return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 8))

    def data(self, rows):
        return torch.randn(rows, 16), torch.randn(rows, 16), torch.randn(rows, 16)

    def loss(self, model, anchor, near, far):
        return nn.TripletMarginLoss(margin=2.0)(model(anchor), model(near), model(far))


@family
class TwoViewsConcatenated(Triplet):
    """cat along the batch and chunk again: rows of the model's input are not rows of the batch."""

    splits = False

    def loss(self, model, a, b, c):
        left, middle, right = model(torch.cat([a, b, c], dim=0)).chunk(3, dim=0)
        return F.mse_loss(left, middle) - 0.1 * F.mse_loss(middle, right)


@family
class PointCloud(Task):
    """A set of points a row; the maximum over the points."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(3, 16), nn.Linear(32, 16), nn.Linear(16, 6)

        def forward(self, points):
            x = torch.tanh(self.one(points))
            overall = x.amax(dim=1, keepdim=True).expand_as(x)
            x = torch.tanh(self.two(torch.cat([x, overall], dim=-1)))
            return self.head(torch.max(x, dim=1)[0])

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randn(rows, 25, 3), torch.randint(6, (rows,))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


@family
class Graph(Task):
    """One graph: its nodes are tied to each other through the adjacency matrix."""

    splits = False
    symmetric = False
    budget_rows = 96  # the matrix grows with their square, and activations do not

    def model(self):
        return nn.ModuleList([nn.Linear(12, 128), nn.Linear(128, 5)])

    def data(self, rows):
        adjacency = (torch.rand(rows, rows) < 0.3).to(torch.get_default_dtype())
        adjacency = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
        return torch.randn(rows, 12), adjacency, torch.randint(5, (rows,)), torch.rand(rows) < 0.7

    def loss(self, model, x, adjacency, y, mask):
        x = torch.tanh(adjacency @ model[0](x))
        x = adjacency @ model[1](x)
        return F.cross_entropy(x[mask], y[mask])


@family
class BatchLast(Task):
    """Columns are samples."""

    budget_rows = 1024

    def model(self):
        return nn.ParameterList([torch.randn(20, 12) * 0.3, torch.randn(20, 1) * 0.1, torch.randn(4, 20) * 0.3])

    def data(self, rows):
        return torch.randn(12, rows), torch.randint(4, (rows,))

    def permuted(self, data, order):
        return data[0][:, order], data[1][order]

    def loss(self, model, x, y):
        hidden = torch.tanh(model[0] @ x + model[1])
        return F.cross_entropy((model[2] @ hidden).t(), y)


@family
class SameSizes(Classifier):
    """Batch, length, width, heads and classes are all of one size: a size says nothing of what a dimension is."""

    rows = budget_rows = 11

    def model(self):
        return nn.ModuleDict({"in": nn.Linear(11, 11), "mix": nn.Linear(11, 11), "norm": nn.LayerNorm(11), "out": nn.Linear(11, 11)})

    def data(self, rows):
        return torch.randn(rows, rows, rows), torch.randint(rows, (rows,))

    def loss(self, model, x, y):
        x = torch.tanh(model["in"](x))
        x = x.transpose(1, 2)
        x = model["norm"](x + model["mix"](x).transpose(1, 2))
        x = x @ torch.softmax(x.transpose(-1, -2), dim=1)
        return F.cross_entropy(model["out"](x.permute(2, 0, 1).mean(0)), y)


# ---- ways to write a forward -------------------------------------------------------------------------------------------------


@family
class InPlace(Vectors):
    def model(self):
        return nn.ModuleList([nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 10)])

    def loss(self, model, x, y):
        h = model[0](x)
        h.add_(1.0).mul_(0.5)
        h.relu_()
        g = model[1](h)
        g[:, 0] = 0
        g[:, 3:5] += 2.0
        g.masked_fill_(g > 1.5, 1.5)
        g.clamp_(min=-2)
        total = torch.zeros_like(g)
        total += g
        total[..., -1].copy_(h[..., 0])
        total.sub_(h, alpha=0.3)
        return F.cross_entropy(model[2](total.sigmoid_()), y)


@family
class Views(Images):
    """Every way to look at the same memory."""

    size = 8

    def model(self):
        return nn.ModuleList([nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(36, 10)])

    def loss(self, model, x, y):
        x = torch.tanh(model[0](x))  # [B, 3, 8, 12]
        x = x.permute(0, 2, 1, 3).contiguous().view(x.size(0), 8, 36).transpose(1, 2)  # [B, 36, 8]
        x = x.unflatten(1, (3, 12)).movedim(2, -1).reshape(-1, 12)  # [B*3*8, 12]
        x = model[1](x).view(-1, 3, 8, 8)
        x = x.flip(-1).roll(1, dims=2)
        x = torch.cat([part.squeeze(1) for part in x.split(1, dim=1)], dim=-1).unsqueeze(1)  # [B, 1, 8, 24]
        x = x.squeeze(1).narrow(2, 0, 20)[:, ::2, 1:19].unfold(2, 9, 9)  # [B, 4, 2, 9]
        x = torch.diagonal(x.expand(-1, -1, -1, 9), dim1=1, dim2=2).mT.swapaxes(1, 2)  # [B, 9, 2]
        x = torch.stack([x.select(2, 0), x[..., 1]], dim=2).repeat(1, 2, 1)  # [B, 18, 2]
        x = x.as_strided(x.size(), x.stride()).flatten(1)
        return F.cross_entropy(model[2](x), y)


@family
class CutAndJoin(Vectors):
    """chunk, split, cat, stack, hsplit, unbind, where, gather, scatter."""

    def model(self):
        return nn.ModuleList([nn.Linear(24, 24), nn.Linear(12, 12), nn.Linear(24, 10)])

    def loss(self, model, x, y):
        a, b, c = model[0](x).chunk(3, dim=1)
        d, e = torch.split(torch.cat([c, a], 1), [10, 6], dim=-1)
        f = torch.stack([a, b, c]).mean(0) + torch.stack((a, b), dim=-1).sum(-1)
        g = torch.where(d[:, :8] > 0, d[:, :8], torch.exp(d[:, :8]) - 1)
        g = g.gather(1, (y % 8)[:, None].expand(-1, 8))
        h = torch.hstack([f, e[:, :4]])
        p, q = model[1](h).tensor_split(2, dim=1)
        r = torch.zeros(x.size(0), 24, dtype=x.dtype)
        r[:, :6] = p * q
        r = r.scatter_add(1, (y[:, None] + torch.arange(8)) % 24, g) + x
        return F.cross_entropy(model[2](r), y)


@family
class Pointwise(Vectors):
    """A walk through elementwise operators, some with broadcast and scalar tensors."""

    def model(self):
        return nn.ModuleDict({"a": nn.Linear(24, 24), "b": nn.Linear(24, 10), "slope": nn.PReLU(24)})

    def loss(self, model, x, y):
        h = model["slope"](model["a"](x))
        h = torch.sin(h) + torch.cos(h) * torch.erf(h) - torch.sigmoid(h).sqrt()
        h = torch.addcmul(h, h, x, value=0.1) + torch.lerp(h, x, 0.2)
        h = F.softplus(h) + F.hardswish(h) + F.mish(h) + F.logsigmoid(h) + F.elu(h) + F.selu(h) * 0.1
        h = torch.maximum(h, torch.tensor(-3.0, dtype=h.dtype)).minimum(torch.full((1, 24), 6.0, dtype=h.dtype))
        h = h / (1 + h.abs()) + torch.log1p(h * h) + torch.atan2(h, x.abs() + 1)
        h = h * torch.linspace(0.5, 1.5, 24, dtype=h.dtype) + (2 ** -h.clamp(min=0)) + torch.rsqrt(h ** 2 + 1)
        h = h.float().to(x.dtype) if x.dtype == torch.float32 else h
        return F.cross_entropy(model["b"](h), y)


@family
class Reductions(Images):
    """Sums, means, variances, norms, cumulative sums and top-k within the row."""

    size = 9

    def model(self):
        return nn.ModuleList([nn.Conv2d(3, 8, 3), nn.Linear(25, 10)])

    def loss(self, model, x, y):
        h = model[0](x)  # [B, 8, 7, 7]
        flat = h.flatten(2)
        parts = [h.mean((2, 3)), h.var(dim=(2, 3)), flat.norm(dim=2), flat.std(-1).sum(1, keepdim=True)]
        flat = flat - flat.mean(dim=-1, keepdim=True)
        flat = flat.cumsum(-1) / flat.size(-1)
        best = torch.topk(flat, 2, dim=-1).values
        ordered = flat.sort(dim=-1, descending=True)[0][..., :5].logsumexp(-1)
        parts[3] = parts[3] + best.prod(-1).sum(1, keepdim=True) + ordered.mean(1, keepdim=True)
        return F.cross_entropy(model[1](torch.cat(parts, dim=1)), y)


@family
class Einsum(Task):
    budget_rows = 128

    def model(self):
        return nn.ParameterList([torch.randn(10, 12) * 0.3, torch.randn(3, 12, 12) * 0.3, torch.randn(12, 5) * 0.3])

    def data(self, rows):
        return torch.randn(rows, 14, 10), torch.randint(5, (rows,))

    def loss(self, model, x, y):
        x = torch.einsum("btc,cd->btd", x, model[0]).tanh()
        x = torch.einsum("b t c, h c d -> b h t d", x, model[1])
        weights = torch.einsum("bhtd,bhsd->bhts", x, x).softmax(-1)
        x = torch.einsum("bhts,bhsd->bd", weights, x) / 14
        return F.cross_entropy(torch.tensordot(x, model[2], dims=1), y)


@family
class SpectralConvolution(Task):
    """Frequencies that are multiplied by weights and written into zeros."""

    budget_rows = 128

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Conv1d(1, 6, 1)
            self.weight = nn.Parameter(torch.complex(torch.randn(6, 6, 5), torch.randn(6, 6, 5)) * 0.1)
            self.skip = nn.Conv1d(6, 6, 1)
            self.drop = nn.Conv1d(6, 1, 1)

        def forward(self, x):
            x = self.lift(x)
            frequencies = torch.fft.rfft(x)
            out = torch.zeros_like(frequencies)
            out[:, :, :5] = torch.einsum("bix,iox->box", frequencies[:, :, :5], self.weight)
            x = torch.fft.irfft(out, n=x.size(-1))
            return self.drop(F.gelu(x + self.skip(x)))

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randn(rows, 1, 32), torch.randn(rows, 1, 32)

    def loss(self, model, x, y):
        off = (model(x) - y).flatten(1)
        return (off.norm(dim=1) / y.flatten(1).norm(dim=1)).mean()


@family
class WeightNorm(Vectors):
    def model(self):
        norm = nn.utils.parametrizations.weight_norm
        return nn.Sequential(norm(nn.Linear(24, 32)), nn.Tanh(), norm(nn.Linear(32, 10)))


@family
class SpectralNorm(Vectors):
    """The forward of every step writes the power iteration's vectors, which are buffers, once."""

    def model(self):
        return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(24, 32)), nn.Tanh(), nn.Linear(32, 10))


@family
class CheckpointReentrant(Vectors):
    """Reentrant checkpoints are Python functions: opaque."""

    reentrant = True
    splits = False

    def model(self):
        return nn.ModuleList([nn.Linear(24, 32), nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)), nn.Linear(32, 10)])

    def loss(self, model, x, y):
        x = model[0](x)
        x = checkpoint(model[1], x, use_reentrant=self.reentrant)
        return F.cross_entropy(model[2](torch.tanh(x)), y)


@family
class CheckpointNonReentrant(CheckpointReentrant):
    reentrant = False


@family
class EmbeddingScaledByFrequency(Tokens):
    """The gradient counts over the whole batch: no rule. Its output is real, and a view of it is taken while it is made anew."""

    splits = False

    def model(self):
        return nn.Sequential(nn.Embedding(self.vocabulary, 8, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(8 * self.length, self.classes))


@family
class MixtureOfExperts(Tokens):
    """Every token goes to the expert that a router picks; what comes back is added in place, at rows that depend on values."""

    splits = False

    class Net(nn.Module):
        def __init__(self, vocabulary, classes):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, 16)
            self.router = nn.Linear(16, 3)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(3))
            self.head = nn.Linear(16, classes)

        def forward(self, x):
            x = self.tokens(x)
            flat = x.view(-1, x.size(-1))
            weight, chosen = self.router(flat).softmax(-1).topk(2)
            out = torch.zeros(flat.shape, dtype=flat.dtype)
            for number, expert in enumerate(self.experts):
                token, rank = torch.where(chosen == number)
                out.index_add_(0, token, expert(flat[token]) * weight[token, rank, None])
            return self.head(out.view(x.shape).mean(1))

    def model(self):
        return self.Net(self.vocabulary, self.classes)


class CheckpointedTransformer(LanguageModel):
    """Every block a checkpoint, as most who run out of memory have it already: what runs out is a block's second run, in backward."""

    reentrant = True

    class Net(GptNet):
        reentrant = True

        def forward(self, tokens):
            x = self.token(tokens) + self.position(torch.arange(tokens.size(1)))
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            return self.head(self.norm(x))

    def model(self):
        net = self.Net()
        net.reentrant = self.reentrant
        return net


@family
class TransformerOfReentrantCheckpoints(CheckpointedTransformer):
    splits = False  # at any budget: what passes from block to block stays whole


@family
class TransformerOfCheckpoints(CheckpointedTransformer):
    reentrant = False


@family
class CustomFunction(Vectors):
    """A Python autograd.Function between ordinary layers: opaque to koila, and therefore run at full batch."""

    splits = False

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            s = torch.sigmoid(x)
            return gradient * (s + x * s * (1 - s))

    def model(self):
        return nn.ModuleList([nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, 10)])

    def loss(self, model, x, y):
        x = self.Swish.apply(model[0](x))
        return F.cross_entropy(model[2](torch.tanh(model[1](x))), y)


@family
class ModuleHooks(Vectors):
    """Forward hooks that change an output, and full backward hooks that see gradients (opaque functions to koila)."""

    splits = False

    def model(self):
        model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))
        model[0].register_forward_hook(lambda module, inputs, output: output * 1.5)
        model[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.1,))
        self.norms = []
        model[2].register_full_backward_hook(lambda module, inputs, outputs: self.norms.append(outputs[0].norm().item()))
        return model

    def finish(self, model, record):
        record.value("norms", torch.tensor(self.norms))


@family
class ForwardHooks(Vectors):
    """Forward hooks alone are ordinary operators."""

    def model(self):
        model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))
        model[0].register_forward_hook(lambda module, inputs, output: output * 1.5)
        model[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.1,))
        return model


@family
class ParameterHooks(Vectors):
    """Hooks on leaves see the whole gradient, once, from the last layer to the first."""

    def model(self):
        model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 10))
        self.seen, self.accumulated, self.order = [], [], []
        for number, parameter in enumerate(model.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda _, number=number: self.order.append(number))

        def scaled(gradient):
            self.seen.append(gradient.norm().item())
            return gradient * 0.5

        model[0].weight.register_hook(scaled)
        model[2].bias.register_post_accumulate_grad_hook(lambda p: self.accumulated.append(p.grad.norm().item()))
        return model

    def finish(self, model, record):
        record.value("seen", torch.tensor(self.seen))
        record.value("accumulated", torch.tensor(self.accumulated))
        record.value("order", torch.tensor(self.order))


@family
class FrozenBackbone(Images):
    def model(self):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(800, 10))
        model[0].requires_grad_(False)
        model[2].weight.requires_grad_(False)
        return model


@family
class InputGradient(Vectors):
    """The batch itself requires grad: its gradient is gathered, row by row."""

    symmetric = False  # the gradients of the rows go where the rows are
    held_per_row = 2 * 24 * 4

    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 10))

    def step(self, model, optimizer, data, record):
        x, y = data
        x = x.clone().requires_grad_(True)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        record.value("input", x.grad)
        optimizer.step()
        record.value("loss", loss)


@family
class Autocast(LanguageModel):
    """Half precision: equal to what two ways to round bfloat16 allow."""

    tolerance = 3e-2

    def model(self):
        return GptNet()

    def loss(self, model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
            return F.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1))


@family
class OneRow(Cnn):
    """A batch of one row cannot be split; it has to run as ever."""

    rows = budget_rows = 1
    splits = False
