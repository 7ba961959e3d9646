"""Programs that take their batch apart along its rows and put parts together, each under budgets: see under_budgets.py.

    koila run --ladder 0,1 -- python tests/e2e/parts_of_rows.py NAME...
"""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

from under_budgets import STEPS, Programs, main, train

PROGRAMS = program = Programs()
# Holes, near to what the program takes in any case.
program.shares = {"parts_put_together_otherwise": (0.9, 0.8, 0.6), "rows_behind_the_time": (0.9, 0.7, 0.6), "experts_by_sorted_rows": (0.9, 0.8, 0.7), "sequences_packed": (0.9, 0.8),
                  "momentum_encoder_in_chunks": (0.97, 0.9, 0.6), "windows_with_relative_positions": (0.74, 0.72, 0.68), "loss_in_chunks_of_what_is_detached": (0.98, 0.9, 0.8, 0.6),
                  "fakes_for_both_players": (0.98, 0.9, 0.8, 0.6), "loss_in_chunks_of_what_is_labelled": (0.97, 0.94, 0.92, 0.9, 0.88, 0.7), "codes_in_zeros": (0.95, 0.8, 0.7, 0.6), "codes_as_many_as_rows": (0.95, 0.8, 0.7, 0.6),
                  "codes_of_other_entries": (0.95, 0.8, 0.7, 0.6)}


def mlp(features=32, out=32):
    return nn.Sequential(nn.Linear(features, 128), nn.GELU(), nn.Linear(128, out))


@program
def two_views_in_one_batch(out):
    net = mlp()

    def loss():
        x = torch.randn(101, 32)
        a, b = net(torch.cat([x + 0.1 * torch.randn_like(x), x[:90]])).split([101, 90])
        return (1 - F.cosine_similarity(a[:90], b)).mean() + a[90:].pow(2).mean()

    train(torch.optim.SGD(net.parameters(), 0.1), out, loss)
    return net


@program
def momentum_encoder_in_chunks(out):
    """A key encoder, a copy that is made in the first step, moves its statistics twice without a gradient."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 32))
    keys = copy.deepcopy(net).requires_grad_(False)

    def loss():
        a, b = torch.randn(32, 3, 24, 24), torch.randn(32, 3, 24, 24)
        z = F.normalize(net(a), dim=1)
        with torch.no_grad():
            k = F.normalize(torch.cat([keys(part) for part in b.chunk(2)]), dim=1)
        return F.cross_entropy(z @ k.t() / 0.07, torch.arange(32))

    train(torch.optim.SGD(net.parameters(), 0.1), out, loss)
    return nn.ModuleList([net, keys])


@program
def windows_with_relative_positions(out):
    """Windows of 16 places have 256 pairs of them, which is 16 for each row of the batch, by chance."""
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
    apart = (places[:, :, None] - places[:, None] + 3).permute(1, 2, 0)
    pairs = (apart * torch.tensor([7, 1])).sum(-1)

    def windows(x):
        b, height, width, channels = x.shape
        return x.view(b, height // 4, 4, width // 4, 4, channels).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 16, channels)

    class Block(nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.shift, self.table = shift, nn.Parameter(torch.randn(49, 2) * 0.02)
            self.first, self.second, self.qkv, self.out = nn.LayerNorm(16), nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
            self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
            rows = torch.zeros(1, 8, 8, 1)
            rows[:, -4:] += 1
            rows[:, :, -4:] += 2
            rows = windows(rows).view(-1, 16)
            self.mask = (rows[:, None] != rows[:, :, None]) * -100.0 if shift else None

        def forward(self, x):
            b, height, width, channels = x.shape
            w = windows(torch.roll(self.first(x), (-self.shift, -self.shift), (1, 2)) if self.shift else self.first(x))
            n = len(w)
            q, k, v = self.qkv(w).view(n, 16, 3, 2, channels // 2).permute(2, 0, 3, 1, 4)
            a = q * 8**-0.5 @ k.transpose(-2, -1) + self.table[pairs.view(-1)].view(16, 16, 2).permute(2, 0, 1).contiguous().unsqueeze(0)
            if self.mask is not None:
                a = (a.view(n // 4, 4, 2, 16, 16) + self.mask[:, None]).view(-1, 2, 16, 16)
            w = self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(n, 16, channels)).view(b, 2, 2, 4, 4, channels).permute(0, 1, 3, 2, 4, 5).contiguous().view(b, height, width, channels)
            x = x + (torch.roll(w, (self.shift, self.shift), (1, 2)) if self.shift else w)
            return x + self.mlp(self.second(x))

    net = nn.ModuleList([nn.Conv2d(3, 16, 4, 4), Block(0), Block(2), nn.Linear(16, 5)])

    def loss():
        x = net[0](torch.randn(16, 3, 32, 32)).permute(0, 2, 3, 1)
        return F.cross_entropy(net[3](net[2](net[1](x)).flatten(1, 2).mean(1)), torch.randint(5, (16,)))

    train(torch.optim.AdamW(net.parameters(), 1e-3), out, loss)
    return net


@program
def labelled_and_unlabelled(out):
    net = mlp(out=5)

    def loss():
        x, y = torch.randn(150, 32), torch.randint(5, (60,))
        logits = net(x)
        sure = logits[60:].detach().softmax(1)
        return F.cross_entropy(logits[:60], y) + F.mse_loss(logits[60:].softmax(1), (sure * 2).clamp(max=1))

    train(torch.optim.AdamW(net.parameters(), 1e-3), out, loss)
    return net


@program
def tokens_shifted(out):
    table, net = nn.Embedding(50, 32), mlp(out=50)
    model = nn.ModuleList([table, net])

    def loss():
        tokens = torch.randint(50, (200,))
        return F.cross_entropy(net(table(tokens))[:-1], tokens[1:])

    train(torch.optim.AdamW(model.parameters(), 1e-3), out, loss)
    return model


@program
def sequences_packed(out):
    """Attention within sequences of a packed row, everything else by the token."""
    table, qkv, net, head = nn.Embedding(64, 32), nn.Linear(32, 96), mlp(), nn.Linear(32, 64)
    model, lengths = nn.ModuleList([table, qkv, net, head]), [17, 40, 9, 61, 33, 24]

    def loss():
        tokens = torch.randint(64, (sum(lengths),))
        h = table(tokens)
        parts, start = [], 0
        q, k, v = qkv(h).chunk(3, -1)
        for n in lengths:
            parts.append(F.scaled_dot_product_attention(*(t[None, start : start + n] for t in (q, k, v)), is_causal=True)[0])
            start += n
        h = h + torch.cat(parts)
        return F.cross_entropy(head(h + net(h))[:-1], tokens[1:])

    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def experts_by_sorted_rows(out):
    """Rows are sorted by their expert, worked on in parts, and put back."""
    first, gate, experts, last = nn.Linear(16, 32), nn.Linear(32, 4), nn.ModuleList(mlp() for _ in range(4)), nn.Linear(32, 5)
    model = nn.ModuleList([first, gate, experts, last])

    def loss():
        h = first(torch.randn(400, 16)).relu()
        weight, expert = gate(h).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        parts = h[order].split(expert.bincount(minlength=4).tolist())
        y = torch.cat([f(part) for f, part in zip(experts, parts)])[order.argsort()] * weight[:, None]
        return F.cross_entropy(last(h + y), torch.randint(5, (400,)))

    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def written_in_parts(out):
    """Writes in place to parts of the batch, and to views of them."""
    net, head = mlp(), nn.Linear(32, 3)
    model = nn.ModuleList([net, head])

    def loss():
        h = net(torch.randn(120, 32)) * 1
        h[:40] = 0.5
        h[30:70] *= 2
        part = h[50:110]
        part.add_(1)
        part[:, 3:7].mul_(0.5)
        h.narrow(0, 100, 15).mul_(torch.arange(15.0)[:, None])
        return (head(h)[5:].relu() * torch.linspace(0, 1, 115)[:, None]).mean() + h[3:].pow(2).mean()

    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def parts_put_together_otherwise(out):
    net, head = mlp(), mlp(out=3)
    model = nn.ModuleList([net, head])

    def loss():
        a, b, c = net(torch.randn(130, 32)).tensor_split(3)
        d, e = torch.cat([c, a[:43]]).chunk(2)
        whole = torch.cat([e, b, d, a[43:]])
        return head(whole)[10:120].sum(1).pow(2).mean() + (whole[:60] * whole[69:129]).mean() + (d[:, :4] - e[:, 4:8].tanh()).abs().mean()

    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def rows_behind_the_time(out):
    """The batch is dimension 1."""
    net, head = mlp(), nn.Linear(32, 4)
    model = nn.ModuleList([net, head])

    def loss():
        h = net(torch.randn(7, 45, 32))
        near, far = h[:, :20], h.narrow(1, 20, 25)
        return head(near).mean(0).pow(2).sum() + F.cross_entropy(head(far).flatten(0, 1), torch.arange(175) % 4) + torch.cat([far, near], 1).amax(0).mean()

    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def loss_in_chunks_of_what_is_detached(out):
    """A loss of hidden states, a few at a time, each with a pass of its own; then one pass through what made the states, from their gradient."""
    body, head = nn.Sequential(nn.Embedding(40, 32), mlp(), nn.LayerNorm(32)), nn.Linear(32, 40)
    model = nn.ModuleList([body, head])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        ids = torch.randint(40, (24, 16))
        hidden = body(ids)
        cut = hidden.detach().requires_grad_()
        optimizer.zero_grad()
        for h, y in zip(cut.flatten(0, 1).chunk(4), ids.roll(-1, 1).flatten().chunk(4)):
            loss = F.cross_entropy(head(h), y, reduction="sum") / ids.numel()
            loss.backward()
            out(loss)
        hidden.backward(cut.grad)
        optimizer.step()
    return model


@program
def fakes_for_both_players(out):
    """A generator's images are judged twice: detached, for the discriminator's step, and by the discriminator that this has made."""
    make, judge = nn.Sequential(mlp(16, 64), nn.BatchNorm1d(64), nn.ReLU(), mlp(64)), nn.Sequential(mlp(32, 64), nn.LeakyReLU(0.2), mlp(64, 1))
    of_make, of_judge = torch.optim.SGD(make.parameters(), 0.05), torch.optim.Adam(judge.parameters(), 1e-3)
    for _ in range(STEPS):
        real, fake = torch.randn(200, 32), make(torch.randn(200, 16))
        of_judge.zero_grad()
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        loss.backward()
        of_judge.step()
        of_make.zero_grad()
        wanted = F.softplus(-judge(fake)).mean()
        wanted.backward()
        of_make.step()
        out(loss, wanted)
    return nn.ModuleList([make, judge])


def quantized_by_codes(out, codes, others=False):
    """A VQ-VAE of the first kind: a code for each pixel, marked in zeros that have a row for each of them; entries that follow their pixels; what goes on goes past the choice."""

    class Codebook(nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in {"entries": torch.randn(codes, 8), "sizes": torch.zeros(codes), "sums": torch.randn(codes, 8)}.items():
                self.register_buffer(name, value)

        def forward(self, z):
            z = z.permute(0, 2, 3, 1).contiguous()
            pixels = z.view(-1, 8)
            distances = pixels.pow(2).sum(1, keepdim=True) - 2 * pixels @ self.entries.t() + self.entries.pow(2).sum(1)
            chosen = distances.argmin(1)
            marks = torch.zeros(chosen.size(0), codes).scatter_(1, chosen.unsqueeze(1), 1)
            quantized = (marks @ self.entries).view_as(z)
            with torch.no_grad():
                self.sizes.mul_(0.9).add_(marks.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(marks.t() @ pixels.detach(), alpha=0.1)
                moved = self.sums / (self.sizes + 1e-5).unsqueeze(1)
            if others:
                self.entries = moved
            else:
                self.entries.copy_(moved)
            used = marks.mean(0)
            return (z + (quantized - z).detach()).permute(0, 3, 1, 2).contiguous(), F.mse_loss(quantized.detach(), z), torch.exp(-(used * (used + 1e-10).log()).sum())

    encode = nn.Sequential(nn.Conv2d(3, 12, 4, 2, 1), nn.ReLU(), nn.Conv2d(12, 8, 3, 1, 1))
    decode = nn.Sequential(nn.Conv2d(8, 12, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(12, 3, 4, 2, 1))
    book = Codebook()
    model = nn.ModuleList([encode, book, decode])

    def loss():
        x = torch.rand(32, 3, 16, 16)
        z, kept, perplexity = book(encode(x))
        out(perplexity)
        return F.mse_loss(decode(z), x) + 0.25 * kept

    train(torch.optim.Adam(model.parameters(), 1e-3), out, loss)
    return model


@program
def codes_in_zeros(out):
    return quantized_by_codes(out, 20)


@program
def codes_as_many_as_rows(out):
    return quantized_by_codes(out, 32)


@program
def codes_of_other_entries(out):
    """The entries that the step has read are gone when the book returns, and with them the distances, whose graph had them."""
    return quantized_by_codes(out, 20, others=True)


@program
def places_in_small_zeros(out):
    """Zeros of a few hundred bytes, which rows write to."""
    net, choose = mlp(32, 16), nn.Linear(16, 4)

    def loss():
        h = net(torch.randn(96, 32))
        weight, best = choose(h).softmax(-1).topk(2, dim=-1)
        gates = torch.zeros(96, 4).scatter(1, best, weight)
        hard = torch.zeros(96, 4)
        hard.scatter_(1, best, 1.0)
        return (h.unsqueeze(1) * (gates * hard).unsqueeze(-1)).pow(2).mean() + (hard.mean(0) * gates.mean(0)).sum()

    train(torch.optim.SGD([*net.parameters(), *choose.parameters()], 0.1), out, loss)
    return nn.ModuleList([net, choose])


@program
def loss_in_chunks_of_what_is_labelled(out):
    """Tokens in chunks that cut through rows, of which a mask picks: memory runs out between them, when most of what is held is in the graph alone."""
    tokens, head = nn.Embedding(100, 32), nn.Parameter(torch.randn(100, 32) * 0.1)
    layers = nn.ModuleList([mlp() for _ in range(3)])
    optimizer = torch.optim.SGD([head, *tokens.parameters(), *layers.parameters()], 0.1)

    def loss():
        ids = torch.randint(100, (24, 49))
        h = tokens(ids[:, :-1])
        for layer in layers:
            h = h + layer(h)
        labels = ids[:, 1:].masked_fill(torch.rand(24, 48) < 0.1, -100)
        h, labels = h.reshape(-1, 32), labels.reshape(-1)
        total = h.new_zeros(())
        for rows, wanted in zip(h.split(128), labels.split(128)):
            each = F.cross_entropy(rows @ head.t(), wanted, ignore_index=-100, reduction="none")
            total = total + each[wanted != -100].sum()
        return total / (labels != -100).sum()

    train(optimizer, out, loss)
    return nn.ModuleList([tokens, layers, nn.ParameterList([head])])


if __name__ == "__main__":
    main(PROGRAMS)
