"""Deliberate traps: small steps in which rows meet, sizes mislead, memory is shared, or values are written where one would not look.

Most are one function between two layers, `@between`; some a whole loss, `@trained_by`; the rest are steps of their own.
"""

import math
import re

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from task import Task, family

HIDDEN = 12  # with so many rows the batch has the size of the features


class Trap(Task):
    budget_rows = 96
    budgeted = True  # False: activations do not outweigh the rest, and budgets would say nothing
    wraps_errors = False  # True: an out-of-memory error may come as a RuntimeError that quotes it, in plain PyTorch too
    splits = False  # it may or may not be: exact or untouched is all that is asked for
    symmetric = False

    def model(self):
        return nn.ModuleList([nn.Linear(8, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 5)])

    def data(self, rows):
        return torch.randn(rows, 8), torch.randint(5, (rows,))

    @staticmethod
    def mix(h):
        return h

    def loss(self, model, x, y):
        h = self.mix(torch.tanh(model[0](x)))
        return F.cross_entropy(model[2](torch.tanh(model[1](h))), y)


def register(function, method, base):
    name = "".join(word.capitalize() for word in function.__name__.split("_"))
    family(type(name, (base,), {method: staticmethod(function), "__doc__": function.__doc__, "__module__": function.__module__}))
    return function


def between(function):
    """A family whose hidden values, [rows, HIDDEN], go through `function`."""
    return register(function, "mix", Trap)


def trained_by(function):
    """A family whose loss is `function` of the model, the batch and the labels."""
    return register(function, "loss", Trap)


def outputs(model, x):
    return model[2](torch.tanh(model[1](torch.tanh(model[0](x)))))


# ---- rows that meet: scans, sorts, statistics -----------------------------------------------------------------------------------


@between
def log_softmax_of_columns(h):
    return h + 0.1 * F.log_softmax(h, dim=0) + F.softmin(h, dim=0)


@between
def layer_norm_over_batch(h):
    return F.layer_norm(h.T, (h.size(0),)).T


@between
def instance_norm_over_batch(h):
    """Rows are the length."""
    return F.instance_norm(h.T[None])[0].T


@between
def spread_of_columns(h):
    var, mean = torch.var_mean(h, dim=0, unbiased=False)
    return (h - mean) * torch.rsqrt(var + 1e-5) + torch.std_mean(h, dim=(0, 1), correction=0)[0]


@between
def scans_over_batch(h):
    return h + 0.1 * h.logcumsumexp(0) + 0.1 * h.cummax(0).values + 0.1 * h.cummin(0)[0] + torch.cumprod(h.abs() + 0.5, dim=0).clamp(max=2)


@between
def cumulative_over_flat(h):
    return h + h.flatten().cumsum(0).view_as(h) / h.numel()


@between
def best_of_columns(h):
    return h + h.topk(min(3, len(h)), dim=0).values.mean(0) + h.kthvalue(1, dim=0).values + h.median(dim=0).values + h.median()


@between
def quantiles_of_columns(h):
    return h - torch.quantile(h, 0.3, dim=0) + h.msort()[-1:] + h.nanmedian(0)[0] + torch.nanmean(h, 0)


@between
def rows_in_order_of_a_column(h):
    return h[h[:, 0].argsort(descending=True)] + h


@between
def largest_row_for_all(h):
    """Indices of rows are those of the whole batch."""
    best = h.argmax(0)
    return h + h[best].mean(0) + h.gather(0, h.min(0, keepdim=True).indices) + best.to(h.dtype) / len(h)


@between
def clamped_by_batch(h):
    return h.clamp(max=0.8 * h.detach().amax(0)) / h.abs().max() + torch.clamp(h, min=h.mean(), max=h.max(0).values)


@between
def over_its_own_norm(h):
    return h / h.norm() + F.normalize(h, dim=0) + h / torch.linalg.vector_norm(h, dim=0)


@between
def renormed(h):
    return torch.renorm(h, 2, 0, 1.0) + torch.renorm(h, 2, 1, 1.5)


@between
def product_of_columns(h):
    return h * (1 + 0.1 * h.abs()).prod(0) + h.logsumexp(0) - h.amin(0) + h.sum() / h.numel()


@between
def leave_one_out(h):
    return h - (h.sum(0) - h) / max(len(h) - 1, 1)


@between
def detached_statistics(h):
    with torch.no_grad():
        mean, scale = h.mean(0), h.std(0, unbiased=False) + 0.1
    return (h - mean) / scale


@between
def sinkhorn(h):
    """SwAV's assignments: rows and columns are scaled in turns."""
    q = torch.exp(h).t()
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(dim=1, keepdim=True) / HIDDEN
        q = q / q.sum(dim=0, keepdim=True) / q.size(1)
    return (q * q.size(1)).t() * h * 10


@between
def frequencies_of_columns(h):
    return torch.fft.irfft(torch.fft.rfft(h, dim=0) * 0.9, n=len(h), dim=0) + torch.fft.fft2(h).real / h.numel()


@between
def differences_of_rows(h):
    return torch.diff(h, dim=0, prepend=h[:1]) + torch.cumulative_trapezoid(F.pad(h, (0, 0, 1, 0)), dim=0) / len(h)


@between
def shifted_rows(h):
    return F.pad(h.T, (1, 0)).T[:-1] + torch.cat([h[1:], h[:1]]) + torch.cat((h[-1:], h), 0)[:-1]


@between
def flipped_rows(h):
    return h + 0.5 * h.flip(0)


@between
def flipped_both(h):
    return h + 0.5 * h.flip((0, 1)) + torch.flipud(h) + torch.fliplr(h)


@between
def rolled_rows(h):
    return h + 0.5 * h.roll(1, dims=0) + h.roll((2, 1), (0, 1))


@between
def rolled_flat(h):
    return h + 0.5 * h.roll(5)


@between
def turned(h):
    return h + torch.rot90(h, 2, (0, 1)) + torch.rot90(torch.rot90(h), -1)


# ---- the batch as something else: length, channels, weights, a table -----------------------------------------------------------


@between
def convolved_over_batch(h):
    return h + F.conv1d(h.T[None], torch.full((HIDDEN, HIDDEN, 3), 0.05, dtype=h.dtype), padding=1)[0].T


@between
def pooled_over_batch(h):
    pooled = F.avg_pool1d(h.T[None], 3, 1, 1) + F.max_pool1d(h.T[None], 3, 1, 1) + F.adaptive_avg_pool1d(h.T, 1)
    return h + pooled[0].T


@between
def interpolated_over_batch(h):
    return h + F.interpolate(h.T[None], size=len(h), mode="linear")[0].T + F.interpolate(h[None, None], scale_factor=2)[0, 0, ::2, ::2]


@between
def image_of_the_batch(h):
    """One picture with a row of pixels each."""
    return h + F.conv2d(h[None, None], torch.full((1, 1, 3, 3), 0.1, dtype=h.dtype), padding=1)[0, 0]


@between
def windows_over_batch(h):
    if len(h) < 3:
        return h
    return torch.cat([h.unfold(0, 3, 1).mean(-1), h[:2]]) + h.unfold(0, 2, 1).sum(-1).mean(0)


@between
def batch_as_a_sequence(h):
    """[B, E] means one sequence without a batch to attention."""
    return h + F.scaled_dot_product_attention(h[None], h[None], h[None])[0] + F.scaled_dot_product_attention(h, h, h, is_causal=True)


@between
def batch_as_output_features(h):
    return h + torch.softmax(F.linear(h, h), dim=1) @ h


@between
def batch_as_a_table(h):
    rows = torch.arange(len(h)).flip(0)
    return F.embedding(rows, h) + h + F.embedding_bag(rows[None].expand(len(h), -1), h, mode="mean")


@between
def filters_of_each_row(h):
    """Every row brings its own filter: a convolution with as many groups as rows."""
    image = h.reshape(1, -1, 1) * torch.linspace(-1, 1, 7, dtype=h.dtype)
    kernel = h[:, None, :3].expand(-1, HIDDEN, -1).reshape(-1, 1, 3)
    return F.conv1d(image, kernel, padding=1, groups=image.size(1)).view(len(h), HIDDEN, 7).mean(-1) + h


@between
def filters_of_each_row_in_groups(h):
    n = len(h)
    image = h.view(1, n * 3, 4)
    kernel = torch.einsum("bi,o->boi", h[:, :3], torch.ones(2, dtype=h.dtype)).reshape(n * 2, 3, 1)
    return h + F.conv1d(image, kernel, groups=n).view(n, 8).mean(1, keepdim=True)


@between
def batch_as_channels(h):
    return h + F.group_norm(h[None], 1)[0] + F.local_response_norm(h[None], 3)[0]


# ---- sizes that mislead --------------------------------------------------------------------------------------------------------


@between
def column_against_row(h):
    """[B, 1] and [1, B]."""
    return h + (h[:, :1] - h[:, :1].T).abs().mean(1, keepdim=True) + (h[:, 0] * h[:, 1:2]).mean(0)[:, None]


@between
def vector_against_column(h):
    """[B] and [B, 1]: what was not meant, and works."""
    return h * (h.mean(1) - h.mean(1, keepdim=True) + 1).mean(1, keepdim=True)


@between
def condition_of_one_dimension(h):
    keep = h.detach()[:, 0] > 0
    return torch.where(keep[:, None], h, -h) + torch.where(keep, h.T, 0.1 * h.T).T + (h.T * keep).T


@between
def condition_on_features_or_rows(h):
    """A condition of the size of the features: in a square batch, that of the rows too."""
    keep = torch.arange(HIDDEN) % 3 == 0
    h = torch.where(keep, h, -h) * keep.logical_not().to(h.dtype).add(1)
    return h + torch.linspace(0, 1, HIDDEN, dtype=h.dtype)


@between
def outer_products(h):
    pairs = torch.outer(h[:, 0], h[:, 1]) + torch.einsum("a,b->ab", h[:, 2], h[:, 3])
    return h + pairs.mean(1, keepdim=True) + torch.outer(h[:, 0], h[0])


@between
def gram_of_features(h):
    return h @ (h.T @ h) / len(h)


@between
def gram_of_rows(h):
    gram = h @ h.T
    return h + (gram - torch.diag(gram.diagonal())).relu().mean(1)[:, None] + gram.diagonal()[:, None] + gram.trace() / len(h)


@between
def covariance(h):
    return h @ (torch.cov(h.T) + torch.corrcoef(h.T.contiguous() + torch.eye(HIDDEN, len(h), dtype=h.dtype)))


@between
def ridge_regression(h):
    """Closed form in the features."""
    a = h.T @ h + torch.eye(HIDDEN, dtype=h.dtype)
    return h @ torch.linalg.solve(a, h.T @ h.roll(1, 1)) + h @ torch.linalg.inv(a)


@between
def kernel_regression(h):
    """Closed form in the rows."""
    k = torch.exp(-torch.cdist(h, h).square()) + torch.eye(len(h), dtype=h.dtype)
    return h + k @ torch.cholesky_solve(h, torch.linalg.cholesky(k))


@between
def whitened(h):
    values, vectors = torch.linalg.eigh(h.T @ h / len(h) + torch.diag(torch.arange(1.0, HIDDEN + 1, dtype=h.dtype)))
    return h @ (vectors * values.rsqrt()) @ vectors.T


@between
def singular_values(h):
    return h / torch.linalg.svdvals(h).max() + 0.1 * torch.linalg.matrix_norm(h, "nuc") / h.numel() + torch.linalg.matrix_norm(h)


@between
def kronecker(h):
    n = len(h)
    return torch.kron(torch.eye(2, dtype=h.dtype), h)[n:, HIDDEN:] + torch.block_diag(h, h)[:n, :HIDDEN] + torch.kron(h, torch.ones(1, 2, dtype=h.dtype))[:, ::2]


@between
def letters_in_odd_places(h):
    a = torch.einsum("zy,xy->zx", h, h)
    b = torch.einsum("yz,yx->zx", h, h)
    return (torch.einsum("ij,jk->ik", a, h) + torch.einsum("ki,ij->kj", h, b)) / len(h) + torch.einsum("ii->i", a)[:, None] \
        + torch.einsum("bi,ci->", h, h) / len(h) ** 2 + torch.einsum("bi->ib", h).T + torch.einsum("...i,i...->...", h, h.T).mean()


@between
def letters_of_the_row(h):
    w = torch.linspace(-1, 1, HIDDEN * HIDDEN, dtype=h.dtype).view(HIDDEN, HIDDEN)
    return torch.einsum("bi,bj,ij->bj", h, h, w) + torch.einsum("b...,b...->b", h, h)[:, None] + torch.bmm(h[:, None], h[:, :, None])[:, 0]


@between
def contracted_over_batch(h):
    t = torch.tensordot(h, h, dims=([0], [0])) + torch.bmm(h.T[None], h[None])[0] + torch.baddbmm(torch.zeros(1, 1, 1, dtype=h.dtype), h.mT[None], h[None])[0]
    return h @ t / len(h)


@between
def rows_tiled(h):
    """[2B, F] by tiling: neighbours belong to different rows, [B, 2, F] mixes them."""
    return h.repeat(2, 1).view(len(h), 2, HIDDEN).sum(1) + h


@between
def rows_tiled_back(h):
    return h.repeat(2, 1).view(2, len(h), HIDDEN).sum(0) + h.tile(3, 2)[: len(h), :HIDDEN]


@between
def rows_repeated(h):
    """[2B, F] with copies side by side: [B, 2, F] is as it looks."""
    return h.repeat_interleave(2, 0).view(len(h), 2, HIDDEN).sum(1) + h.repeat_interleave(2, dim=0)[::2]


@between
def rows_repeated_unequally(h):
    counts = torch.arange(len(h)) % 3 + 1
    many = h.repeat_interleave(counts, dim=0)
    return torch.zeros_like(h).index_add(0, torch.arange(len(h)).repeat_interleave(counts), many)


@between
def flat_and_back(h):
    n = h.size(0)
    h = torch.tanh(h.view(-1)).view(n * HIDDEN, 1).view(n, HIDDEN).reshape(-1, 3).reshape(-1, HIDDEN)
    return h.view(n, 3, -1).flatten(0, 1).unflatten(0, (-1, 3)).reshape(n, HIDDEN)


@between
def flat_turned(h):
    """view(-1) and then another number of columns: rows fall apart."""
    other = h.reshape(-1).view(HIDDEN, -1)
    return h + other.softmax(1).reshape(-1, HIDDEN) + h.view(-1)[::7].mean() + h.reshape(-1)[torch.arange(h.numel() - 1, -1, -1)].view_as(h)


@between
def strided_by_hand(h):
    n = len(h)
    h = h.contiguous()
    return h.as_strided((n, HIDDEN), (HIDDEN, 1)) + h.as_strided((HIDDEN, n), (1, HIDDEN)).t() + h.as_strided((n, 3), (HIDDEN, 2), 1).mean(1, keepdim=True)


@between
def strided_over_rows(h):
    """Overlapping windows of neighbours' memory."""
    h = h.contiguous()
    return h + h.as_strided((len(h), HIDDEN), (HIDDEN - 1, 1)) + h.as_strided((len(h), HIDDEN), (1, len(h)))


@between
def one_row_expanded(h):
    n = len(h)
    return h + h.mean(0, keepdim=True).expand(n, -1) + h[:1].expand_as(h) + h[-1].expand(n, HIDDEN) + h[n // 2].broadcast_to(h.shape)


@between
def pairs_of_rows(h):
    n = len(h)
    pairs = torch.cat([h[:, None].expand(n, n, HIDDEN), h[None].expand(n, n, HIDDEN)], dim=-1)
    return h + torch.tanh(pairs[..., :HIDDEN] - pairs[..., HIDDEN:]).mean(1) + 0.1 * torch.tanh(pairs).mean(0)[:, HIDDEN:]


@between
def pairs_by_index(h):
    i, j = torch.triu_indices(len(h), len(h), 1)
    close = torch.exp(-(h[i] - h[j]).square().sum(1))
    return h + torch.zeros_like(h).index_add(0, i, h[j] * close[:, None]) + F.pairwise_distance(h, h.flip(0))[:, None]


@between
def similarities(h):
    near = F.cosine_similarity(h[:, None], h[None], dim=-1)
    return h + near.masked_fill(torch.eye(len(h), dtype=torch.bool), -math.inf).softmax(-1) @ h if len(h) > 1 else h


@between
def causal_over_batch(h):
    scores = h @ h.T / HIDDEN ** 0.5
    scores = scores.masked_fill(torch.tril(torch.ones(len(h), len(h))) == 0, -math.inf)
    return h + scores.softmax(-1) @ h


@between
def triangles_of_the_batch(h):
    """The triangle of [B, F] itself cuts by the number of the row."""
    return h.tril() + 0.5 * h.triu(1) + h.tril(-1).sum(1, keepdim=True)


@between
def scaled_by_sizes(h):
    n = h.size(0)
    return h / math.sqrt(n) + h * n / h.numel() + h.shape[0] * 0.01 + torch.tensor(h.size(), dtype=h.dtype).prod() * 1e-3


@between
def depends_on_number_of_rows(h):
    if len(h) % 2:
        h = h + 1
    for _ in range(len(h) % 4):
        h = torch.tanh(h)
    return h


@between
def depends_on_values(h):
    if h.mean() > 0:
        h = h * 2
    while h.abs().max() > 0.7:
        h = h * 0.9
    return h + int(h.argmax()) * 0.01


# ---- what is gone by the time that it counts ------------------------------------------------------------------------------------


@between
def mask_of_positions_that_are_gone(h):
    """A function's own arange: what it returns is as large as the batch when it enters the graph."""

    def mask():
        return (torch.arange(HIDDEN) >= 4).to(h.dtype).expand(len(h), -1)

    return h * (mask() + 1)


@between
def mask_of_positions_that_change(h):
    positions = torch.arange(HIDDEN)
    for _ in range(3):
        mask = (positions >= 4).to(h.dtype).expand(len(h), -1) + 1
        positions += 2
        h = h * mask
    return h


@between
def mask_of_draws_that_are_gone(h):
    def mask():
        return (torch.rand_like(torch.zeros(HIDDEN, dtype=h.dtype)) + torch.randperm(HIDDEN)).expand(len(h), -1)

    return h * (mask() + 1)


@between
def mask_of_an_array_that_is_used_again(h):
    array = np.arange(HIDDEN)
    for _ in range(3):
        mask = (torch.from_numpy(array) >= 4).to(h.dtype).expand(len(h), -1) + 1
        array += 2
        h = h * mask
    return h


@between
def mask_of_part_of_a_buffer_that_is_used_again(h):
    buffer = torch.arange(2 * HIDDEN)
    for _ in range(3):
        mask = (buffer[:HIDDEN] >= 4).to(h.dtype).expand(len(h), -1) + 1
        buffer += 2
        h = h * mask
    return h


# ---- literals of the batch's size ----------------------------------------------------------------------------------------------


@between
def zeros_of_the_batch(h):
    n = h.size(0)
    state = torch.zeros(n, HIDDEN, dtype=h.dtype)
    for _ in range(3):
        state = torch.tanh(state + h) * torch.full((n, 1), 0.9, dtype=h.dtype)
    return state + h.new_zeros(n, 1) + h.new_full((n, HIDDEN), 0.1) + torch.empty(n, 1, dtype=h.dtype).fill_(0.2) + torch.zeros((n,) + h.shape[1:], dtype=h.dtype)


@between
def numbers_of_rows(h):
    n = len(h)
    return h + torch.arange(n)[:, None] / n + torch.linspace(0, 1, n, dtype=h.dtype).unsqueeze(1) + torch.arange(n).view(-1, 1).expand(n, HIDDEN) * 0.01


@between
def numbers_of_columns(h):
    return h + torch.arange(HIDDEN).expand(len(h), HIDDEN) / HIDDEN + torch.arange(HIDDEN).repeat(len(h), 1) * 0.1


@between
def rows_by_their_number(h):
    n = len(h)
    return h[torch.arange(n)] + h[torch.arange(n), torch.arange(n) % HIDDEN][:, None] + h[range(n)] + h[list(range(n)), 3].unsqueeze(1)


@between
def identity_of_the_batch(h):
    eye = torch.eye(len(h), dtype=h.dtype)
    return eye @ h + (eye * 2 - 1) @ h / len(h) + torch.diag_embed(h).sum(-1)


@between
def ones_at_places(h):
    """one_hot with as many classes as rows, or features."""
    place = torch.arange(len(h)) % HIDDEN
    return h * F.one_hot(place, HIDDEN) + F.one_hot(torch.arange(len(h))).to(h.dtype) @ h


@between
def joined_with_constants(h):
    n = h.shape[0]
    h = torch.cat([h[:, :-2], torch.zeros(n, 1, dtype=h.dtype), torch.ones(n, 1, dtype=h.dtype)], dim=1)
    return torch.stack([h, torch.zeros_like(h), torch.full_like(h, 0.5)], 1).sum(1)


@between
def halves(h):
    half = h.size(0) // 2
    first, second = h[:half], h[half:]
    return torch.cat([first * 2 + second[:half], second - (first.mean(0) if half else 0)])


@between
def halves_swapped(h):
    return torch.cat([h[len(h) // 2:], h[:len(h) // 2]], dim=0) + h


@between
def even_and_odd(h):
    out = torch.empty_like(h)
    out[::2] = h[::2] * 2
    out[1::2] = h[1::2] - h[::2][: len(h) // 2]
    return out


@between
def split_by_rows(h):
    n = len(h)
    a, b = h.split([n // 3, n - n // 3])
    return torch.cat([torch.tanh(a), b.exp()]) + torch.cat([part * (i + 1) for i, part in enumerate(h.chunk(4))]) + torch.vstack(h.tensor_split(3)[::-1])


@between
def unbound(h):
    return torch.stack([row * (i + 1) / len(h) for i, row in enumerate(h.unbind(0))]) + torch.stack(list(h)[::-1])


@between
def row_by_row(h):
    rows = []
    for i in range(h.size(0)):
        rows.append(torch.tanh(h[i]) * h[i].sum())
    return torch.stack(rows) + torch.vstack([row[None] for row in h]) + torch.cat([h[i:i + 1] for i in range(len(h))])


@between
def recurrent_over_rows(h):
    state, states = torch.zeros(HIDDEN, dtype=h.dtype), []
    for row in h:
        state = torch.tanh(row + 0.5 * state)
        states.append(state)
    return torch.stack(states)


@between
def columns_by_columns(h):
    return torch.stack([h[:, i] * (i + 1) for i in range(h.size(1))], dim=1) + torch.column_stack(h.unbind(1)[::-1])


# ---- written in place ----------------------------------------------------------------------------------------------------------


@between
def written_through_views(h):
    h = h.clone()
    h[:, 2:5].mul_(2)
    h.T[3].add_(1)
    h.view(-1, 2)[:, 0] += 0.1
    h.select(1, 7).copy_(h[:, 1])
    h.diagonal(0, 0, 1)[:1].zero_()
    return h


@between
def written_across_rows(h):
    h = h.clone()
    h.view(-1)[::5] += 0.1
    h[::2].mul_(0.5)
    h[-1] += h[0]
    h.diagonal().fill_(0.3)
    h[len(h) // 2:] -= h[:len(h) - len(h) // 2].clone()
    return h


@between
def one_row_written(h):
    h = h * 1
    h[0] = 0
    h[1:2] = 0.5
    return h


@between
def rows_written_by_index(h):
    n, h = len(h), h.clone()
    index = torch.tensor([0, n - 1, n // 2]).unique()
    h[index] = torch.ones(len(index), HIDDEN, dtype=h.dtype)
    h[torch.arange(n), torch.arange(n) % HIDDEN] = 0.25
    h[index] *= 2
    return h


@between
def rows_swapped(h):
    h = h.clone()
    h[[0, -1]] = h[[-1, 0]]
    return h


@between
def rows_written_under_a_mask(h):
    mask, h = h.detach()[:, 0] > 0, h.clone()
    h[mask] = 0
    h[~mask, 1] = 1
    h[h > 0.5] *= 2
    h[mask.nonzero().squeeze(1)] += 1
    return h


@between
def values_written_under_a_mask(h):
    mask, h = h.detach()[:, 0] > 0, h.clone()
    h[mask] = h[mask] * 2 + h[mask].mean(0)
    return h.masked_scatter(h.detach() > 0.4, torch.linspace(0, 1, h.numel(), dtype=h.dtype))


@between
def index_methods(h):
    order = torch.arange(len(h)).flip(0)
    out = h.index_add(0, order, h, alpha=0.5).index_copy(0, order[:1], h[:1]).index_fill(0, order[-1:], 0.5)
    return out.index_select(0, order) + h.index_put((order,), h, accumulate=True) + h.index_select(1, torch.arange(HIDDEN).flip(0))


@between
def flat_indices(h):
    flat = torch.arange(0, h.numel(), 3)
    return h.put(flat, torch.ones(len(flat), dtype=h.dtype)) + torch.take(h, flat).mean() + h.take(torch.arange(h.numel()).flip(0).view_as(h))


@between
def gathered_over_batch(h):
    order = torch.arange(len(h)).roll(1)[:, None].expand_as(h)
    return h.gather(0, order) + torch.take_along_dim(h, h.argsort(0), 0) + h.scatter(0, order, h * 2) + h.scatter_add(0, order, h)


@between
def scattered_into_groups(h):
    group = torch.arange(len(h)) % 3
    sums = torch.zeros(3, HIDDEN, dtype=h.dtype).scatter_add(0, group[:, None].expand_as(h), h)
    most = torch.zeros(3, HIDDEN, dtype=h.dtype).scatter_reduce(0, group[:, None].expand_as(h), h, "amax", include_self=False)
    mean = torch.zeros(3, HIDDEN, dtype=h.dtype).index_reduce(0, group, h, "mean", include_self=False)
    return h + (sums + most + mean)[group]


@between
def metadata_written_in_place(h):
    """t_, unsqueeze_ and squeeze_ change the tensor itself."""
    h = h.clone()
    h.t_()
    h = torch.sin(h) * 1
    h.transpose_(0, 1).unsqueeze_(0)
    h.mul_(2)
    return h.squeeze_(0).unsqueeze_(1).swapdims_(0, 1).squeeze_(0)


@between
def detached_in_place(h):
    other = h.clone()
    h = h * 2
    h.detach_()
    return h + other


@between
def given_other_data(h):
    h = h.clone()
    h.data = h.data * 2
    return h + 1


@between
def written_through_data(h):
    h = h.clone()
    h.data[:, 0] = 0.5
    h.data.clamp_(max=0.7)
    return h + 1


@between
def results_handed_in(h):
    """out=."""
    with torch.no_grad():
        out = torch.empty_like(h)
        torch.mul(h, 2, out=out)
        torch.add(out, 1, out=out)
        mean = torch.empty(HIDDEN, dtype=h.dtype)
        torch.mean(out, 0, out=mean)
        both = h.new_empty(0)
        torch.cat([out, h], 0, out=both)
    return h + out + mean + both[len(h):]


@between
def buffer_filled_row_by_row(h):
    out = torch.zeros_like(h)
    for i in range(len(h)):
        out[i] = h[i] * (i + 1)
        if i:
            out[i] += 0.5 * out[i - 1].clone()
    return out / len(h)


@between
def aliases(h):
    """What returns its input, or a view of all of it, and is then written to."""
    same = nn.Identity()(nn.Dropout(0.0)(h)).contiguous().view_as(h).to(h.dtype).expand_as(h)[:]
    twice = same * 1
    view = twice[:]
    view += 1
    twice.detach()[:, 0] = 0.5
    return twice + same + view.view(h.shape)


@between
def picked_by_mask(h):
    """The number of rows depends on values; what is left is too."""
    mask = h.detach().mean(1) > 0
    out = torch.zeros_like(h)
    out[mask] = torch.tanh(h[mask]) * 2
    return out + torch.masked_select(h, h.detach() > 0).mean() + torch.cat([h[mask], h[~mask]])[(~mask).int().argsort(stable=True).argsort()]


@between
def places_of_values(h):
    rows, columns = torch.nonzero(h.detach() > 0.3, as_tuple=True)
    return h + torch.zeros_like(h).index_put((rows, columns), h[rows, columns] * 2, accumulate=True) + torch.argwhere(h.detach() > 0.3).to(h.dtype).mean()


@between
def distinct_values(h):
    signs = torch.sign(h.detach()[:, :2])
    kinds, which, counts = torch.unique(signs, dim=0, return_inverse=True, return_counts=True)
    means = torch.zeros(len(kinds), HIDDEN, dtype=h.dtype).index_add(0, which, h) / counts[:, None]
    return h - means[which] + torch.bincount(which)[which][:, None] + torch.unique_consecutive(signs[:, 0]).numel() * 0.01


@between
def ranks(h):
    key = h.detach()[:, 0].contiguous()
    rank = torch.searchsorted(key.sort().values, key)
    return h + rank[:, None] / len(h) + torch.bucketize(key, key.sort().values)[:, None] * 0.1 + torch.histc(key, 4)[0] * 0.01


@between
def rows_from_another_order(h):
    """Manifold mixup."""
    order, share = torch.randperm(len(h)), torch.rand(len(h), 1, dtype=h.dtype)
    return share * h + (1 - share) * h[order]


@between
def rows_drawn_with_repetition(h):
    return h[torch.randint(len(h), (len(h),))] + h[torch.multinomial(torch.ones(len(h)), 1)] + h * torch.bernoulli(torch.full((len(h), 1), 0.7, dtype=h.dtype))


@between
def styles_exchanged(h):
    """MixStyle: the statistics of each row go to another."""
    mean, spread = h.mean(1, keepdim=True), h.std(1, keepdim=True) + 0.1
    order = torch.randperm(h.size(0))
    return (h - mean) / spread * spread[order] + mean[order]


# ---- the batch elsewhere -------------------------------------------------------------------------------------------------------


class Sequences(Trap):
    """[B, T, D], labels [B, T]."""

    budget_rows = 48
    length = 7

    def data(self, rows):
        return torch.randn(rows, self.length, 8), torch.randint(5, (rows, self.length))


@family
class BatchInTheMiddle(Sequences):
    """[T, B, D] throughout, and [T, B] labels."""

    def data(self, rows):
        return torch.randn(self.length, rows, 8), torch.randint(5, (self.length, rows))

    def loss(self, model, x, y):
        h = torch.tanh(model[0](x))
        h = h + h.mean(0) + h.cumsum(0) / len(h)
        return F.cross_entropy(outputs_of(model, h).view(-1, 5), y.reshape(-1))


@family
class BatchBehindTime(Sequences):
    """[T, B, D] merged to [T*B, D]: a row's places are far apart."""

    def loss(self, model, x, y):
        n, t, _ = x.shape
        h = torch.tanh(model[0](x.transpose(0, 1).reshape(t * n, -1)))
        h = h.view(t, n, -1) + h.view(t, n, HIDDEN).mean(0)
        return F.cross_entropy(outputs_of(model, h.flatten(0, 1)), y.t().reshape(-1))


@family
class MergedTheWrongWay(Sequences):
    """[T*B, D] seen as [B, T, D], as in the classic mistake."""

    def loss(self, model, x, y):
        n, t, _ = x.shape
        h = torch.tanh(model[0](x.transpose(0, 1).reshape(t * n, -1))).view(n, t, HIDDEN)
        return F.cross_entropy(outputs_of(model, h + h.mean(1, keepdim=True)).view(n * t, 5), y.reshape(-1))


@family
class BatchAndTimeMergedAndCut(Sequences):
    """view(B * T, -1), and halves of what comes out."""

    def loss(self, model, x, y):
        n, t, d = x.shape
        h = torch.tanh(model[0](x.view(n * t, -1)))
        out = outputs_of(model, h.view(n, t, HIDDEN)[:, 1:] + h.view(n, -1, HIDDEN)[:, :-1]).reshape(n * (t - 1), 5)
        return F.cross_entropy(out, y[:, 1:].reshape(n * (t - 1))) + out[:n].mean() + out.view(n, t - 1, 5)[:, 0].sum() / n


@family
class BatchLastOfThree(Sequences):
    """[D, T, B]."""

    def loss(self, model, x, y):
        h = torch.tanh(torch.einsum("od,dtb->otb", model[0].weight, x.permute(2, 1, 0)) + model[0].bias[:, None, None])
        h = h.softmax(1) * h + h.sum(0) / HIDDEN
        return F.cross_entropy(outputs_of(model, h.permute(2, 1, 0)).permute(0, 2, 1), y)


@family
class Positions(Sequences):
    """Positions, causal masks and masks of padding, made from sizes."""

    def loss(self, model, x, y):
        n, t, _ = x.shape
        h = torch.tanh(model[0](x)) + (torch.arange(t).expand(n, t) / t)[..., None] + torch.arange(n * t).view(n, t, 1) / (n * t)
        lengths = torch.arange(n) % t + 1
        padding = torch.arange(t)[None] >= lengths[:, None]
        mask = torch.ones(t, t, dtype=torch.bool).tril() & ~padding[:, None, :]
        scores = (h @ h.mT).masked_fill(~mask, -1e9) + torch.zeros(n, t, t, dtype=h.dtype).masked_fill(padding[:, None], -1e9)
        h = h + scores.softmax(-1) @ h + F.scaled_dot_product_attention(h, h, h, mask | torch.eye(t, dtype=torch.bool))
        last = h[torch.arange(n), lengths - 1]
        loss = F.cross_entropy(outputs_of(model, h).transpose(1, 2), y, reduction="none")
        return (loss * ~padding).sum() / (~padding).sum() + last.square().mean()


@family
class MaskedTokens(Sequences):
    """A masked language model: logits[mask], labels[mask], and a learned vector in the places that are masked."""

    def loss(self, model, x, y):
        mask = torch.rand(y.shape) < 0.3
        mask[0, 0] = True
        h = torch.sin(model[0](x)) * 1
        h[mask] = model[0].bias
        h = h + h.mean(1, keepdim=True)
        return F.cross_entropy(outputs_of(model, h)[mask], y[mask]) + outputs_of(model, h[mask.any(1)]).mean()


@family
class LoopOverTime(Sequences):
    def loss(self, model, x, y):
        state = torch.zeros(x.size(0), HIDDEN, dtype=x.dtype)
        loss, states = 0, []
        for t in range(x.shape[1]):
            state = torch.tanh(model[0](x[:, t]) + model[1](state))
            states.append(state)
            loss = loss + F.cross_entropy(model[2](state), y[:, t])
        return loss / x.size(1) + torch.stack(states, 1).var(1).mean()


@family
class LoopOverTimeAndRows(Sequences):
    rows = 5
    budget_rows = 40
    length = 3

    def loss(self, model, x, y):
        losses = []
        for i in range(len(x)):
            state = torch.zeros(1, HIDDEN, dtype=x.dtype)
            for t in range(x.size(1)):
                state = torch.tanh(model[0](x[i, t])[None] + model[1](state))
            losses.append(F.cross_entropy(model[2](state), y[i, -1:]))
        return torch.stack(losses).mean() + sum(losses) / len(losses)


@family
class LstmOverRows(Trap):
    """An LSTM that is given [B, D] takes rows for time."""

    def model(self):
        return nn.ModuleList([nn.Linear(8, HIDDEN), nn.LSTM(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 5)])

    def loss(self, model, x, y):
        return F.cross_entropy(model[2](model[1](torch.tanh(model[0](x)))[0]), y)


@family
class AttentionOverRows(Trap):
    """So does attention; dropout is off."""

    def model(self):
        return nn.ModuleList([nn.Linear(8, HIDDEN), nn.TransformerEncoderLayer(HIDDEN, 2, 16, dropout=0.0), nn.Linear(HIDDEN, 5)])

    def loss(self, model, x, y):
        return F.cross_entropy(model[2](model[1](torch.tanh(model[0](x)))), y)


@family
class SquareOfEverything(Trap):
    """B == T == D == 12: which dimension is reduced, normalised, or gathered over cannot be told by size."""

    rows = budget_rows = HIDDEN
    def data(self, rows):
        return torch.randn(rows, HIDDEN, HIDDEN), torch.randint(5, (rows, HIDDEN))

    def model(self):
        return nn.ModuleList([nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 5)])

    def loss(self, model, x, y):
        h = torch.tanh(model[0](x))
        h = h + h.permute(1, 0, 2).softmax(-1) + h.mean(1) + h.mean(2)[:, None] + h.transpose(1, 2) @ h.transpose(0, 1)
        h = h + torch.where(h[:, :, 0] > 0, h[0], h[:, 0]) + h.gather(1, y[..., None].expand_as(h)) + h.reshape(HIDDEN * HIDDEN, HIDDEN)[:HIDDEN]
        return F.cross_entropy(model[2](torch.tanh(model[1](h))).permute(1, 2, 0), y)


def outputs_of(model, h):
    return model[2](torch.tanh(model[1](h)))


# ---- losses --------------------------------------------------------------------------------------------------------------------


@trained_by
def weighted_by_the_batch(model, x, y):
    """Class weights counted in the batch, and losses weighted by their own share."""
    weight = len(y) / (torch.bincount(y, minlength=5).to(x.dtype) + 1)
    losses = F.cross_entropy(outputs(model, x), y, weight=weight, reduction="none")
    return (losses * losses.detach() / losses.detach().sum()).sum() + F.cross_entropy(outputs(model, x), y, weight=weight)


@trained_by
def scaled_by_itself(model, x, y):
    losses = F.cross_entropy(outputs(model, x), y, reduction="none")
    return losses.mean() / losses.mean().detach() + losses.max() + losses.mean() ** 2 + (losses - losses.min()).sqrt().sum().clamp(min=1).log()


@trained_by
def not_squeezed(model, x, y):
    """mse_loss of [B, 1] and [B] compares all with all, and warns."""
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return F.mse_loss(outputs(model, x)[:, :1], y.to(x.dtype))


@trained_by
def labels_of_the_batch(model, x, y):
    """As many classes as rows: softmax over the batch, and targets that number it."""
    a, b = torch.tanh(model[0](x)), torch.tanh(model[1](torch.tanh(model[0](x))))
    logits = a @ b.T
    return F.cross_entropy(logits, torch.arange(len(x))) + F.cross_entropy(logits.T, torch.arange(len(x))) + F.cross_entropy(outputs(model, x), y)


@trained_by
def pairs_of_one_kind(model, x, y):
    h = torch.tanh(model[0](x))
    same = (y[:, None] == y[None]) & ~torch.eye(len(y), dtype=torch.bool)
    distance = torch.cdist(h, h)
    return distance[same].sum() / (same.sum() + 1) + F.relu(1 - distance[~same]).mean() + F.pdist(h).mean() + F.cross_entropy(outputs(model, x), y)


@trained_by
def prototypes(model, x, y):
    """Few-shot: the mean of a class in the batch is its centre."""
    h = torch.tanh(model[1](torch.tanh(model[0](x))))
    counts = torch.bincount(y, minlength=5)
    centres = torch.zeros(5, HIDDEN, dtype=h.dtype).index_add(0, y, h) / counts.clamp(min=1)[:, None]
    by_hand = torch.stack([h[y == c].sum(0) for c in range(5)]) / counts.clamp(min=1)[:, None]
    return F.cross_entropy(-torch.cdist(h, centres), y) + (h - by_hand[y]).square().mean() + model[2](h).square().mean()


@trained_by
def cox(model, x, y):
    """Survival: sorted by time, a cumulative sum from the end."""
    risk = outputs(model, x)[:, 0]
    order = torch.argsort(x[:, 0], descending=True)
    risk, event = risk[order], (y[order] > 1).to(x.dtype)
    return -((risk - torch.logcumsumexp(risk, 0)) * event).sum() / event.sum().clamp(min=1)


@trained_by
def ranked(model, x, y):
    """ListNet over the batch, and pairs in the wrong order."""
    score, target = outputs(model, x)[:, 0], y.to(x.dtype)
    wrong = F.relu(1 - (score[:, None] - score[None]) * torch.sign(target[:, None] - target[None]))
    return -(target.softmax(0) * score.log_softmax(0)).sum() + wrong.mean()


@trained_by
def half_is_labelled(model, x, y):
    """Semi-supervised: the first half has labels, the second has to be sure."""
    half = len(x) // 2
    out = outputs(model, x)
    sure = out[half:].softmax(1).detach().amax(1)
    return F.cross_entropy(out[:half], y[:half], reduction="sum") / max(half, 1) + (out[half:].softmax(1) * out[half:].log_softmax(1)).sum(1).mul(sure).mean()


@trained_by
def sure_rows_only(model, x, y):
    """FixMatch: pseudo-labels where the model is sure, selected rows and a mask."""
    out = outputs(model, x)
    sure, label = out.detach().softmax(1).max(1)
    mask = sure > sure.median()
    selected = F.cross_entropy(out[mask], label[mask], reduction="sum")
    return selected / len(x) + (F.cross_entropy(out, label, reduction="none") * mask).mean() + F.cross_entropy(out, y)


@trained_by
def losses_of_single_rows(model, x, y):
    out = outputs(model, x)
    return sum(F.cross_entropy(out[i:i + 1], y[i:i + 1]) for i in range(len(x))) / len(x) + sum(F.cross_entropy(o, t) for o, t in zip(out, y))


@trained_by
def maximum_mean_discrepancy(model, x, y):
    h, g = torch.tanh(model[0](x)), torch.randn(len(x) + 3, HIDDEN, dtype=x.dtype)

    def kernel(a, b):
        return torch.exp(-torch.cdist(a, b).square() / 4).mean()

    return kernel(h, h) + kernel(g, g) - 2 * kernel(h, g) + F.cross_entropy(outputs(model, x), y)


@trained_by
def sliced_wasserstein(model, x, y):
    h = torch.tanh(model[0](x)) @ torch.randn(HIDDEN, 6, dtype=x.dtype)
    return (h.sort(0).values - torch.randn(len(x), 6, dtype=x.dtype).sort(0).values).square().mean() + F.cross_entropy(outputs(model, x), y)


@trained_by
def differentiable_area_under_curve(model, x, y):
    score, positive = outputs(model, x)[:, 0], y > 1
    pairs = torch.sigmoid(score[positive][:, None] - score[~positive][None])
    return -pairs.sum() / max(pairs.numel(), 1) + F.binary_cross_entropy_with_logits(score, positive.to(x.dtype), pos_weight=(~positive).sum() / positive.sum().clamp(min=1))


@trained_by
def entropy_of_the_mean(model, x, y):
    p = outputs(model, x).softmax(1)
    mean = p.mean(0)
    return (mean * mean.log()).sum() - 0.3 * (p * p.log()).sum(1).mean() + torch.distributions.kl_divergence(
        torch.distributions.Categorical(p), torch.distributions.Categorical(mean)).mean()


@trained_by
def flat_vectors(model, x, y):
    """Weights flattened into one vector, and the rows too."""
    flat = torch.nn.utils.parameters_to_vector(model.parameters())
    return F.cross_entropy(outputs(model, x), y) + 1e-3 * flat.norm() + 1e-3 * torch.dot(outputs(model, x).reshape(-1), torch.ones(5 * len(x), dtype=x.dtype))


@trained_by
def one_layer_three_times(model, x, y):
    """Shared weights, transposed and sliced."""
    h = torch.tanh(model[0](x))
    for _ in range(3):
        h = torch.tanh(model[1](h)) @ model[1].weight.T
    h = h + F.linear(h, model[1].weight[:HIDDEN], model[2].weight[0]) + F.linear(h[:, :8], model[0].weight)
    return F.cross_entropy(F.linear(h, model[2].weight, model[2].bias), y)


@trained_by
def weights_made_of_the_batch(model, x, y):
    """Fast weights: the matrix a row meets is made of all rows."""
    h = torch.tanh(model[0](x))
    fast = model[1].weight + 0.1 * h.T @ h / len(h)
    return F.cross_entropy(model[2](torch.tanh(F.linear(h, fast, h.mean(0)))), y)


@trained_by
def padded_batch(model, x, y):
    """Rows of zeros fill the batch up, and are taken off again."""
    more = -len(x) % 8
    x = torch.cat([x, x.new_zeros(more, 8)])
    out = outputs(model, x)
    return F.cross_entropy(out[:len(y)], y) + F.cross_entropy(out, F.pad(y, (0, more), value=-100))


@trained_by
def picked_twice(model, x, y):
    """Some rows go through the model again, others not at all."""
    again = torch.arange(len(x)).repeat(2)[1:: 2]
    hard = F.cross_entropy(outputs(model, x), y, reduction="none").detach().topk((len(x) + 1) // 2).indices
    return F.cross_entropy(outputs(model, x[again]), y[again]) + F.cross_entropy(outputs(model, x[hard]), y[hard])


@trained_by
def views_doubled_and_chunked(model, x, y):
    """Two augmented views in one batch, chunked afterwards, and compared with each other."""
    a, b = torch.tanh(model[0](torch.cat([x, x.flip(1)]))).chunk(2)
    c = torch.stack([a, b], 1).flatten(0, 1)
    return (1 - F.cosine_similarity(a, b)).mean() + model[2](model[1](c)).view(-1, 2, 5).diff(dim=1).square().mean() + F.cross_entropy(model[2](c[::2]), y)


# ---- steps ---------------------------------------------------------------------------------------------------------------------


class Step(Trap):
    def step(self, model, optimizer, data, record):
        optimizer.zero_grad()
        self.train(model, optimizer, *data, record)
        record.gradients(model)
        optimizer.step()


def raising(record, name, function, model=None):
    """What `function` raises is plain's to say: type and first line are compared, but for numbers (of versions, for one). A backward pass
    that fails leaves the gradients that it had made by then, of which there may be fewer: those of `model` are dropped."""
    try:
        function()
        text = "nothing"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {re.sub('[0-9]+', '#', str(error).splitlines()[0])}"
        if model is not None:
            model.zero_grad()
    record.value(name, list(text.encode()))


@family
class WeightChangedBeforeBackward(Step):
    """Plain PyTorch refuses."""

    def train(self, model, optimizer, x, y, record):
        loss = F.cross_entropy(outputs(model, x), y)
        with torch.no_grad():
            model[1].weight.mul_(0.9)
        raising(record, "raised", loss.backward, model)
        record.value("loss", loss)


@family
class SteppedBeforeBackward(Step):
    """The optimizer steps between a forward and its backward."""

    def train(self, model, optimizer, x, y, record):
        first = F.cross_entropy(outputs(model, x), y)
        second = outputs(model, x * 0.5).square().mean()
        first.backward()
        optimizer.step()
        raising(record, "raised", second.backward, model)
        record.value("first", first)
        record.value("second", second)


@family
class InputChangedBeforeBackward(Step):
    def train(self, model, optimizer, x, y, record):
        x = x.clone()
        loss = F.cross_entropy(outputs(model, x), y)
        x.mul_(2)
        raising(record, "raised", loss.backward, model)
        record.value("loss", loss)


@family
class InputChangedThroughData(Step):
    """No version shows it: the gradient of the first weight is that of the new input."""

    def train(self, model, optimizer, x, y, record):
        x = x.clone()
        loss = F.cross_entropy(outputs(model, x), y)
        x.data.mul_(2)
        loss.backward()
        record.value("loss", loss)


@family
class InputChangedThroughNumpy(Step):
    """Nobody is told."""

    def train(self, model, optimizer, x, y, record):
        x = x.clone()
        memory = x.numpy()
        loss = F.cross_entropy(outputs(model, x), y)
        memory *= 2
        loss.backward()
        record.value("loss", loss)


@family
class BufferSharedWithNumpy(Step):
    """A simulator writes the next observations where the last ones were."""

    def train(self, model, optimizer, x, y, record):
        memory = x.numpy().copy()
        with torch.no_grad():
            out = outputs(model, torch.from_numpy(memory))
        memory[:] = 0
        loss = F.cross_entropy(outputs(model, x), y)
        loss.backward()
        record.value("out", out)
        record.value("loss", loss)


@family
class InputOverwrittenBeforeReading(Step):
    """One buffer for all batches: outputs are read when their input is gone."""

    def train(self, model, optimizer, x, y, record):
        if record.at_step == 1:
            self.buffer = torch.empty_like(x)
        self.buffer.copy_(x)
        out = outputs(model, self.buffer)
        loss = F.cross_entropy(out, y)
        loss.backward()
        self.buffer.zero_()
        record.value("out", out)
        record.value("loss", loss)


@family
class InputOverwrittenWithoutBackward(Step):
    """The same where no gradient is taken of the outputs."""

    def train(self, model, optimizer, x, y, record):
        x, y = x.clone(), y.clone()
        out = outputs(model, x)
        with torch.no_grad():
            copy = outputs(model, x)
        x.zero_()
        losses = F.cross_entropy(out, y, reduction="none")
        y.zero_()
        record.value("copy", copy)
        record.value("losses", losses)
        F.cross_entropy(outputs(model, x + 1), y).backward()


@family
class LabelsChangedBeforeBackward(Step):
    def train(self, model, optimizer, x, y, record):
        y = y.clone()
        loss = F.cross_entropy(outputs(model, x), y)
        y.add_(1).remainder_(5)
        raising(record, "raised", loss.backward, model)
        record.value("loss", loss)


@family
class HiddenChangedBeforeBackward(Step):
    """tanh saved its result, which is written to."""

    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x))
        loss = F.cross_entropy(model[2](torch.tanh(model[1](h))), y)
        h.detach().mul_(0.5)
        raising(record, "raised", loss.backward, model)
        record.value("loss", loss)
        record.value("hidden", h)


@family
class ViewOfHiddenWritten(Step):
    """A column of the hidden values is written to before the next layer: in-place in the graph."""

    def train(self, model, optimizer, x, y, record):
        h = model[0](x)
        column, half = h[:, 0], h[: len(x) // 2]
        column.mul_(2)
        half.add_(1)
        loss = F.cross_entropy(model[2](torch.tanh(model[1](h))), y) + column.sum() / len(x)
        loss.backward()
        record.value("column", column)
        record.value("half", half)
        record.value("loss", loss)


@family
class LeafWrittenInPlace(Step):
    """An error of plain's, in the forward."""

    def train(self, model, optimizer, x, y, record):
        x = x.clone().requires_grad_(True)
        raising(record, "raised", lambda: x.mul_(2))
        raising(record, "view", lambda: x[:, 0].fill_(0))
        h = model[0](x)
        parts = h.unbind(1)
        raising(record, "unbind", lambda: parts[0].mul_(2))
        F.cross_entropy(outputs(model, x), y).backward()
        record.value("input", x.grad)


@family
class WrongShapes(Step):
    """Errors of shape and type are plain's, and the step goes on."""

    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x))
        raising(record, "linear", lambda: model[0](h))
        raising(record, "view", lambda: h.view(len(h), 7))
        raising(record, "view2", lambda: h.t().view(-1))
        raising(record, "cat", lambda: torch.cat([h, h[:1]], 1))
        raising(record, "index", lambda: h[len(h)])
        raising(record, "index2", lambda: h[torch.tensor([len(h)])])
        raising(record, "labels", lambda: F.cross_entropy(h, y[:-1]))
        raising(record, "label", lambda: F.cross_entropy(model[2](h), y + 5))
        raising(record, "type", lambda: F.linear(h, model[1].weight.half()))
        raising(record, "expand", lambda: h.expand(len(h), 13))
        raising(record, "backward", lambda: h.backward())
        raising(record, "numpy", lambda: h.numpy())
        raising(record, "item", lambda: h.item())
        raising(record, "bool", lambda: bool(h))
        loss = F.cross_entropy(outputs_of(model, h), y)
        loss.backward()
        record.value("loss", loss)


@family
class NothingRequiresGrad(Step):
    def train(self, model, optimizer, x, y, record):
        with torch.no_grad():
            loss = F.cross_entropy(outputs(model, x), y)
        raising(record, "raised", loss.backward, model)
        detached = outputs(model, x).detach().mean()
        raising(record, "detached", detached.backward)
        record.value("loss", loss)
        F.cross_entropy(outputs(model, x), y).backward()


@family
class NoParametersAtAll(Trap):
    """Only the input has a gradient."""

    def model(self):
        return nn.Sequential(nn.Tanh(), nn.Softmax(1))

    def optimizer(self, model, name):
        return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    def step(self, model, optimizer, data, record):
        x = data[0].clone().requires_grad_(True)
        h = model(x * 2)
        loss = h.square().mean() + h[:, 0].log().mean()
        loss.backward()
        record.value("input", x.grad)
        record.value("loss", loss)
        optimizer.step()


@family
class OptimisedInput(Trap):
    """Style transfer: the batch is what is trained, the model is frozen."""

    def model(self):
        model = super().model()
        return model.requires_grad_(False)

    def optimizer(self, model, name):
        self.x = nn.Parameter(torch.zeros(1))
        return torch.optim.SGD([self.x], lr=0.1, momentum=0.9)

    def step(self, model, optimizer, data, record):
        x, y = data
        if record.at_step == 1:
            self.x.data = x.clone()
        optimizer.zero_grad()
        loss = F.cross_entropy(outputs(model, self.x), y) + 0.1 * (self.x[1:] - self.x[:-1]).abs().mean()
        loss.backward()
        record.value("gradient", self.x.grad)
        optimizer.step()
        record.value("x", self.x)
        record.value("loss", loss)


@family
class PerRowParameters(Step):
    """A parameter with an entry per row: auto-decoders, NeRF's appearance codes."""

    budgeted = False  # parameters outweigh activations

    def model(self):
        model = super().model()
        model.append(nn.Embedding(100, HIDDEN))
        model.append(nn.ParameterList([torch.zeros(100, HIDDEN)]))
        return model

    def train(self, model, optimizer, x, y, record):
        rows = torch.arange(len(x))
        h = torch.tanh(model[0](x)) + model[3](rows) + model[4][0][:len(x)] + model[4][0][rows]
        loss = F.cross_entropy(outputs_of(model, h), y) + 0.01 * model[3].weight.norm()
        loss.backward()
        record.value("loss", loss)


@family
class InputReturned(Step):
    """The model returns its input, a view of it, and a part of a list."""

    def train(self, model, optimizer, x, y, record):
        def forward(x):
            return x, x[:, :4], x.T, [torch.tanh(model[0](x))], {"x": x.detach()}

        x = x.clone()
        same, part, turned, (h,), kept = forward(x)
        part.mul_(2)  # the input is written to before it is used again
        loss = F.cross_entropy(outputs_of(model, h), y) + (model[0](same) + model[0](turned.T)).square().mean() + model[0](kept["x"]).mean()
        raising(record, "raised", loss.backward, model)
        record.value("part", part)
        record.value("loss", loss)


@family
class PenaltyOnInputGradient(Step):
    """WGAN-GP: the critic's slope at random mixtures is differentiated."""

    def train(self, model, optimizer, x, y, record):
        share = torch.rand(len(x), 1, dtype=x.dtype)
        between = (share * x + (1 - share) * torch.randn_like(x)).requires_grad_(True)
        out = outputs(model, between)
        (slope,) = torch.autograd.grad(out, between, grad_outputs=torch.ones_like(out), create_graph=True, retain_graph=True)
        loss = outputs(model, x).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
        loss.backward()
        record.value("loss", loss)


@family
class PenaltyOnWeightGradient(Step):
    """A gradient of a gradient over the whole batch."""

    def train(self, model, optimizer, x, y, record):
        loss = F.cross_entropy(outputs(model, x), y)
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        total = loss + 0.1 * sum(s.square().sum() for s in slopes)
        total.backward()
        record.value("loss", total)


@family
class MetaLearning(Step):
    """MAML: an inner step on one half is differentiated through on the other."""

    def train(self, model, optimizer, x, y, record):
        half = len(x) // 2
        inner = F.cross_entropy(outputs(model, x[:half]), y[:half])
        slopes = torch.autograd.grad(inner, list(model.parameters()), create_graph=True)
        w0, b0, w1, b1, w2, b2 = [p - 0.1 * s for p, s in zip(model.parameters(), slopes)]
        h = torch.tanh(F.linear(torch.tanh(F.linear(x[half:], w0, b0)), w1, b1))
        loss = F.cross_entropy(F.linear(h, w2, b2), y[half:])
        loss.backward()
        record.value("inner", inner)
        record.value("loss", loss)


@family
class HessianVectorProduct(Step):
    def train(self, model, optimizer, x, y, record):
        loss = F.cross_entropy(outputs(model, x), y)
        parameters = list(model.parameters())
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        product = sum((s * torch.ones_like(s)).sum() for s in slopes)
        curvature = torch.autograd.grad(product, parameters)
        for i, c in enumerate(curvature):
            record.value(f"curvature{i}", c)
        loss = F.cross_entropy(outputs(model, x), y)
        loss.backward()


@family
class SharpnessAware(Step):
    """SAM: weights move up the slope, then the gradient there, then back."""

    def train(self, model, optimizer, x, y, record):
        F.cross_entropy(outputs(model, x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [0.05 * p.grad / norm for p in model.parameters()]
            for p, m in zip(model.parameters(), moves):
                p.add_(m)
        optimizer.zero_grad()
        loss = F.cross_entropy(outputs(model, x), y)
        loss.backward()
        with torch.no_grad():
            for p, m in zip(model.parameters(), moves):
                p.sub_(m)
        record.value("loss", loss)


@family
class AdversarialInput(Step):
    """FGSM and two steps of PGD: the sign of the input's gradient makes the batch that is trained on."""

    def train(self, model, optimizer, x, y, record):
        attacked = x.clone()
        for _ in range(2):
            attacked = attacked.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(outputs(model, attacked), y), attacked)
            attacked = attacked + 0.1 * slope / slope.abs().mean()
        attacked = attacked.detach()
        loss = F.cross_entropy(outputs(model, attacked), y) + F.kl_div(
            outputs(model, attacked).log_softmax(1), outputs(model, x).softmax(1), reduction="batchmean")
        loss.backward()
        record.value("loss", loss)


@family
class ConflictingGradients(Step):
    """PCGrad: the gradients of two losses are projected onto each other."""

    def train(self, model, optimizer, x, y, record):
        out = outputs(model, x)
        flat = []
        for loss in (F.cross_entropy(out, y), out.square().mean()):
            flat.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)]))
        inner = flat[0] @ flat[1]
        joint = flat[0] + flat[1] - (inner / flat[1].square().sum()).clamp(max=0) * flat[1]
        at = 0
        for p in model.parameters():
            p.grad = joint[at:at + p.numel()].view_as(p).clone()
            at += p.numel()


@family
class BalancedByGradientNorm(Step):
    """GradNorm: losses are weighted by the norms of their gradients in the hidden layer."""

    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x))
        out = outputs_of(model, h)
        losses = [F.cross_entropy(out, y), out.square().mean()]
        norms = [torch.autograd.grad(loss, h, retain_graph=True)[0].norm() for loss in losses]
        total = sum(loss / norm for loss, norm in zip(losses, norms))
        total.backward()
        record.value("norms", [float(n) for n in norms])
        record.value("loss", total)


@family
class BackwardOfEachRow(Step):
    """Differential privacy by hand: the gradient of each row is clipped before it is added."""

    rows = 5
    budget_rows = 40

    def train(self, model, optimizer, x, y, record):
        losses = F.cross_entropy(outputs(model, x), y, reduction="none")
        total = [torch.zeros_like(p) for p in model.parameters()]
        for loss in losses:
            slopes = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            norm = torch.stack([s.norm() for s in slopes]).norm()
            for t, s in zip(total, slopes):
                t.add_(s * (1 / norm).clamp(max=1))
        for p, t in zip(model.parameters(), total):
            p.grad = t / len(x)
        record.value("losses", losses)


@family
class BackwardOfSeveralRoots(Step):
    def train(self, model, optimizer, x, y, record):
        out = outputs(model, x)
        losses = F.cross_entropy(out, y, reduction="none")
        torch.autograd.backward([losses, out.mean()], [torch.full((len(x),), 1 / len(x), dtype=x.dtype), None], retain_graph=True)
        record.gradients(model, "first")
        losses.backward(torch.linspace(0, 1, len(x), dtype=x.dtype))
        record.value("losses", losses)


@family
class GradientsOfSeveralOutputs(Step):
    """grad with several outputs, unused inputs, batches of gradients, and of a hidden tensor."""

    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x))
        out = outputs_of(model, h)
        slopes = torch.autograd.grad([out.sum(), h.mean()], [h, model[0].weight, model[2].bias], allow_unused=True, retain_graph=True)
        for i, s in enumerate(slopes):
            record.value(f"slope{i}", s)
        batch = torch.autograd.grad(out.mean(0), model[1].weight, torch.eye(5, dtype=x.dtype), is_grads_batched=True, retain_graph=True)[0]
        record.value("batch", batch)
        (unused,) = torch.autograd.grad(h.mean(), [model[2].weight], allow_unused=True, retain_graph=True)
        assert unused is None
        raising(record, "unused", lambda: torch.autograd.grad(h.mean(), [model[2].weight], retain_graph=True))
        loss = F.cross_entropy(out, y) + slopes[0].square().mean()
        loss.backward()
        record.value("loss", loss)


@family
class SaliencyInTheLoss(Step):
    """Gradients with respect to hidden values, without create_graph, weight the loss (Grad-CAM)."""

    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x))
        out = outputs_of(model, h)
        (slope,) = torch.autograd.grad(out.gather(1, y[:, None]).sum(), h, retain_graph=True)
        loss = (F.cross_entropy(out, y, reduction="none") * (slope * h).sum(1).sigmoid().detach()).mean()
        loss.backward()
        record.value("loss", loss)


@family
class StateCarriedOver(Step):
    """Truncated backpropagation: a state of the batch's size is detached and carried to the next step."""

    def train(self, model, optimizer, x, y, record):
        state = self.state.detach() if record.at_step > 1 else torch.zeros(len(x), HIDDEN, dtype=x.dtype)
        state = torch.tanh(model[0](x) + model[1](state))
        loss = F.cross_entropy(model[2](state), y)
        loss.backward()
        self.state = state
        record.value("loss", loss)

    def finish(self, model, record):
        record.value("state", self.state)


@family
class GraphCarriedOver(Step):
    """Without detach, and with retain_graph: the next step goes back through this one's graph, and its changed weights."""

    def train(self, model, optimizer, x, y, record):
        if record.at_step == 1:
            self.state = torch.zeros(len(x), HIDDEN, dtype=x.dtype)
        self.state = torch.tanh(model[0](x) + self.state)
        loss = F.cross_entropy(model[2](self.state), y)
        raising(record, "raised", lambda: loss.backward(retain_graph=True), model)
        record.value("loss", loss)

    def finish(self, model, record):
        record.value("state", self.state)


@family
class RunningCentre(Step):
    """DINO: the teacher's outputs are centred by a buffer that follows their mean over the batch, after the loss."""

    def model(self):
        model = super().model()
        model.register_buffer("centre", torch.zeros(1, 5))
        return model

    def train(self, model, optimizer, x, y, record):
        with torch.no_grad():
            target = outputs(model, x + 0.1)
        loss = -(((target - model.centre) / 0.5).softmax(1) * outputs(model, x).log_softmax(1)).sum(1).mean()
        with torch.no_grad():
            model.centre.mul_(0.9).add_(target.mean(0, keepdim=True), alpha=0.1)
        loss.backward()
        record.value("loss", loss)


@family
class OutputsKeptInTheModel(Step):
    """A module keeps its last activations, and the penalty on them is taken from there."""

    def train(self, model, optimizer, x, y, record):
        kept = []
        handle = model[1].register_forward_hook(lambda module, inputs, output: kept.append((inputs[0], output)))
        out = outputs(model, x)
        handle.remove()
        loss = F.cross_entropy(out, y) + 0.1 * kept[0][1].abs().mean() + kept[0][0].std(0).mean()
        loss.backward()
        record.value("loss", loss)
        record.value("kept", kept[0][1])


@family
class GeneratorAmidTheStep(Step):
    """Seeds, and draws that depend on them, in the middle of a forward."""

    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x)) + 0.1 * torch.randn(len(x), HIDDEN, dtype=x.dtype)
        torch.manual_seed(record.at_step)
        h = h + torch.rand_like(h) * 0.1
        state = torch.get_rng_state()
        h = h * torch.empty_like(h).uniform_(0.9, 1.1)
        torch.set_rng_state(state)
        h = h + torch.normal(torch.zeros(HIDDEN, dtype=x.dtype), 0.1) + torch.randint(3, (len(x), 1))
        with torch.random.fork_rng():
            h = h + torch.randn(len(x), 1, dtype=x.dtype)
        loss = F.cross_entropy(outputs_of(model, h), y)
        loss.backward()
        record.value("after", torch.rand(3))
        record.value("loss", loss)


@family
class StepWithoutBackward(Step):
    """Every other step only looks."""

    def train(self, model, optimizer, x, y, record):
        loss = F.cross_entropy(outputs(model, x), y)
        if record.at_step % 2:
            loss.backward()
        record.value("loss", loss)


@family
class FrozenHalfWay(Step):
    """requires_grad changes between the steps, and in the middle of one."""

    def train(self, model, optimizer, x, y, record):
        model[0].requires_grad_(record.at_step % 2 == 0)
        h = torch.tanh(model[0](x))
        model[1].requires_grad_(False)
        h = torch.tanh(model[1](h))
        model[1].requires_grad_(True)
        loss = F.cross_entropy(model[2](h), y)
        loss.backward()
        record.value("loss", loss)


@family
class ErrorInTheLoop(Step):
    """An exception of the program's own leaves a half-made graph behind, and the next try is another one."""

    def train(self, model, optimizer, x, y, record):
        try:
            h = torch.tanh(model[0](x))
            if record.at_step != 2:
                raise KeyError("missing")
        except KeyError:
            h = torch.tanh(model[0](x * 2))
        loss = F.cross_entropy(outputs_of(model, h), y)
        loss.backward()
        record.value("loss", loss)


# ---- batches of no rows --------------------------------------------------------------------------------------------------------


class Empty(Trap):
    budgeted = False

    def data(self, rows):
        return super().data(0)


@family
class EmptyBatch(Empty):
    """The mean of nothing is not a number, and so are the gradients."""


@family
class EmptyBatchSummed(Empty):
    def loss(self, model, x, y):
        h = torch.tanh(model[0](x))
        return F.cross_entropy(model[2](h + h.sum(0)), y, reduction="sum") + torch.cat([h, h[:0]]).sum() + (h @ h.T).sum()


@family
class EmptyNowAndThen(Empty):
    """Every other batch is empty, as a loader's filter leaves them."""

    def step(self, model, optimizer, data, record):
        x, y = data if record.at_step % 2 else Trap.data(self, 11)
        loss = F.cross_entropy(outputs(model, x), y, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class NoRowIsPicked(Trap):
    """A mask that picks no row, every second step."""

    def step(self, model, optimizer, data, record):
        x, y = data
        h = torch.tanh(model[0](x))
        mask = h[:, 0] > (2 if record.at_step % 2 else 0)
        loss = F.cross_entropy(outputs_of(model, h[mask]), y[mask], reduction="sum") / len(x) + h.square().mean()
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)
