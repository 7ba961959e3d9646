"""Views, what has several results, what joins tensors, and what reads or writes by index."""

from kinds import kind


@kind(7)
def shape(c):
    h = c.pick(lambda sizes: len(sizes) >= 1)
    if h is None:
        return False
    sizes = c.sizes(h)
    dims = len(sizes)
    total = 1
    for n in sizes:
        total *= n
    d, e = c.dim(h), c.dim(h)
    choices = {"flatten": f"{h}.flatten({c.random.randrange(dims)})", "flatten_front": f"{h}.flatten(0, {c.random.randrange(dims)})", "reshape_rows": f"{h}.reshape(-1, {c.size(sizes[-1])})", "view_rows": f"{h}.view({c.size(sizes[0])}, -1)",
               "transpose": f"{h}.transpose({d}, {e})", "permute": f"{h}.permute({', '.join(map(str, c.random.sample(range(dims), dims)))})", "movedim": f"{h}.movedim({d}, {e})", "unsqueeze": f"{h}.unsqueeze({d})", "squeeze": f"{h}.squeeze()",
               "expand": f"{h}.unsqueeze({d}).expand({', '.join('-1' if i != d % (dims + 1) else '2' for i in range(dims + 1))})", "repeat": f"{h}.repeat({', '.join(str(c.any((1, 2))) for _ in sizes)})", "interleave": f"{h}.repeat_interleave(2, dim={d})",
               "narrow": f"{h}.narrow({d}, 0, {c.size(max(1, sizes[d] - 1)) if not c.ragged else 1})", "select": f"{h}.select({d}, 0)", "slice": f"{h}[{', '.join(c.any((':', '1:', ':-1', '::2', ':', '...')) if i else ':' for i in range(dims))}]".replace(":, ..., ...", ":, ..."),
               "slice_rows": f"{h}[{c.any(('1:', ':-1', '::2', '0', '-1', 'None', ':, None', '..., None', '..., 0', '[0]', '[0, 0, -1]'))}]", "flip": f"{h}.flip({d})", "roll": f"{h}.roll({c.any((1, -1, 2))}, {d})", "tril": f"{h}.tril()", "triu": f"{h}.triu(1)",
               "diagonal": f"{h}.diagonal(dim1=-1, dim2=-2)" if dims >= 2 else f"torch.diag_embed({h})", "unfold": f"{h}.unfold({d}, 2, 1)", "pad": f"F.pad({h}, (1, {c.any((0, 1, 2))}))", "pad_rows": f"F.pad({h}, ({'0, 0, ' * (dims - 1)}0, 1))", "swapaxes": f"{h}.swapaxes({d}, {e}).contiguous()",
               "view_dtype": f"{h}.view(-1).view({c.list_of(sizes)})", "reshape_half": f"{h}.reshape({c.size(sizes[0])}, {'2, ' if total // max(sizes[0], 1) % 2 == 0 else ''}-1)", "merge_split": f"{h}.reshape(-1).reshape({c.list_of(sizes)})", "T": f"{h}.T" if dims == 2 else f"{h}.mT",
               "split_batch": f"{h}.unflatten(0, (-1, {2 if sizes[0] % 2 == 0 else 1}))", "expand_as": f"{h}.mean(0, keepdim=True).expand_as({h})", "block_diag": f"torch.block_diag({h}, {h})", "as_strided": f"{h}.contiguous().as_strided(({c.list_of(sizes)}{',' if dims == 1 else ''}), {h}.contiguous().stride())",
               "repeat_front": f"{h}.repeat(2, {', '.join('1' for _ in sizes)})", "rot90": f"{h}.rot90(1, (0, -1))" if dims >= 2 else f"{h}.flip(0)", "take": f"{h}.take(torch.arange(4) % {h}.numel())", "view_as": f"{h}.reshape(-1).view_as({h})"}
    return c.let_any(choices)


@kind(3)
def several(c):
    """Several outputs."""
    h = c.pick(lambda sizes: any(n >= 2 for n in sizes))
    if h is None:
        return False
    d = c.any([i for i, n in enumerate(c.sizes(h)) if n >= 2])
    a, b = c.new("h"), c.new("h")
    choices = {"chunk": f"{a}, {b} = {h}.chunk(2, {d})", "split": f"{a}, {b}, *_ = {h}.split([1, {h}.shape[{d}] - 1], {d})", "unbind": f"{a}, {b}, *_ = {h}.unbind({d})", "tensor_split": f"{a}, {b} = {h}.tensor_split(2, {d})",
               "sort": f"{a}, {b} = {h}.sort({d})", "max": f"{a}, {b} = {h}.max({d})", "topk": f"{a}, {b} = {h}.topk(2, {d})", "std_mean": f"{a}, {b} = torch.std_mean({h} + 0.1 * torch.randn_like({h}), {d})", "aminmax": f"{a}, {b} = {h}.aminmax(dim={d})",
               "frexp": f"{a}, {b} = {h}.frexp()", "mode": f"{a}, {b} = {h}.cummax({d})", "var_mean": f"{a}, {b} = torch.var_mean({h}, {d}, correction=0)", "meshgrid": f"{a}, {b} = torch.meshgrid({h}.flatten()[:4], {h}.flatten()[-3:], indexing='ij')",
               "qr": f"{a}, {b} = torch.linalg.qr({h} @ {h}.mT + 3 * torch.eye({h}.shape[-2]))", "slogdet": f"{a}, {b} = torch.linalg.slogdet({h} @ {h}.mT + 3 * torch.eye({h}.shape[-2]))", "broadcast": f"{a}, {b} = torch.broadcast_tensors({h}, {h}.select({d}, 0).unsqueeze({d}))"}
    name = c.any(choices)
    return c.add(choices[name], (a, b), (name + "_several",))


@kind(3)
def joined(c):
    h = c.pick(lambda sizes: len(sizes) >= 1)
    if h is None:
        return False
    d = c.dim(h) % len(c.sizes(h))
    other = c.pick(lambda sizes: len(sizes) == len(c.sizes(h)) and all(i == d or a == b for i, (a, b) in enumerate(zip(sizes, c.sizes(h)))), recent=False) or h
    same = c.pick(lambda sizes: sizes == c.sizes(h), recent=False) or h
    choices = {"cat": f"torch.cat([{h}, {other}], {d})", "stack": f"torch.stack([{h}, {same}], {c.any((0, 1, -1))})", "cat_three": f"torch.cat(({other}, {h}, {other}), dim={d})", "hstack": f"torch.hstack([{h}, {same}])", "vstack": f"torch.vstack([{h}, {same}])",
               "cat_zeros": f"torch.cat([{h}, torch.zeros_like({h})], {d})", "list_sum": f"sum([{h}, {same}, {h} * 0.5])", "stack_mean": f"torch.stack([{h}, {same}]).mean(0)", "concat_rows": f"torch.cat([row[None] for row in {h}])", "dstack": f"torch.dstack([{h}, {same}])",
               "loop": f"torch.stack([row * (i + 1) for i, row in enumerate({h})])", "cdist": f"torch.cdist({h}, {same} + 0.5)", "cosine": f"F.cosine_similarity({h}, {same} + 0.1, dim={d})", "pairwise": f"F.pairwise_distance({h}, {same} + 0.3)",
               "bilinear": f"F.bilinear({h}, {same}, {c.parameter(3, c.sizes(h)[-1], c.sizes(h)[-1])})", "kron": f"torch.kron({h}, {same})", "cross": f"torch.linalg.cross({h}, {same})", "inner": f"torch.inner({h}, {same})", "vecdot": f"torch.linalg.vecdot({h}, {same})",
               "tril_outer": f"torch.einsum('...i,...j->...ij', {h}, {same})", "interp": f"F.grid_sample({h}, {same}[..., :2].tanh(), align_corners=False)" if len(c.sizes(h)) == 4 else f"torch.lerp({h}, {same}, {h}.sigmoid())"}
    return c.let_any(choices)


# ---- indices ---------------------------------------------------------------------------------------------------------------------


@kind(4)
def indexing(c):
    h = c.pick(lambda sizes: len(sizes) >= 1)
    if h is None:
        return False
    sizes = c.sizes(h)
    d, n = c.dim(h) % len(sizes), c.random.randrange(1, 6)
    rows = c.size(sizes[0])
    index = f"torch.randint({c.size(sizes[d])}, ({n},))"
    row_index = f"torch.randint({rows}, ({rows},))"
    choices = {"index_select": f"{h}.index_select({d}, {index})", "index": f"{h}[{', '.join([':'] * d + [index])}]", "shuffle": f"{h}[torch.randperm({rows})]", "gather": f"{h}.gather({d}, torch.zeros_like({h}, dtype=torch.long))", "index_rows": f"{h}[{row_index}]",
               "mask": f"{h}[{h} > {h}.detach().median() + 1e-6]", "mask_rows": f"{h}[(sums := {h}.flatten(1).sum(1)) >= sums.median() - 1e-6]" if len(sizes) >= 2 else f"{h}[{h} > -9]", "masked_select": f"{h}.masked_select({h} > 0)", "take_along": f"{h}.take_along_dim({h}.argsort({d}), {d})",
               "arange": f"{h}[torch.arange({rows}), {h}.flatten(1).argmax(1) % {sizes[1] if len(sizes) > 1 else 1}]", "argmax_gather": f"{h}.gather({d}, {h}.argmax({d}, keepdim=True))", "where": f"torch.where({h} > 0, {h}, {c.parameter()})", "two": f"{h}[torch.arange({rows})[:, None], torch.tensor([[0, 0]])]",
               "first_rows": f"{h}[:{rows} // 2]", "nonzero": f"{h}[({h}.flatten(1)[:, 0] > -5).nonzero().squeeze(1)]" if len(sizes) >= 2 else f"{h}[({h} > 0).nonzero(as_tuple=True)]", "bool_row": f"{h}[torch.rand({rows}) > 0.01]", "pairs": f"{h}[torch.combinations(torch.arange(min(4, {rows})))[:, 0]]",
               "searchsorted": f"torch.searchsorted(torch.linspace(-1, 1, 5), {h}.detach().contiguous()).double()", "bucketize": f"torch.bucketize({h}.detach(), torch.linspace(-1, 1, 4)).double() * {h}", "triu_indices": f"{h}[..., 0, 0]"}
    return c.let_any(choices)


@kind(4)
def scatter(c):
    """Writes by index into tensors that were made for it."""
    h = c.pick(lambda sizes: len(sizes) == 2 and 1 <= sizes[0] <= 40) or None
    if h is None:
        return False
    rows, f = c.sizes(h)
    r, g = c.size(rows), c.size(f)
    index, name = f"torch.randint(4, ({r},))", c.new("h")
    source = c.any((h, f"{h}.detach()", f"({h} * 0.5)"))
    choices = {"scatter_add": f"{h}.new_zeros(4, {g}).scatter_add_(0, {index}[:, None].expand({r}, {g}), {source})", "index_add": f"{h}.new_zeros(4, {g}).index_add_(0, {index}, {source})", "index_add_out": f"torch.zeros(4, {g}).index_add(0, {index}, {source})",
               "scatter_reduce": f"{h}.new_zeros(4, {g}).scatter_reduce_(0, {index}[:, None].expand({r}, {g}), {source}, {c.any(('amax', 'sum', 'mean', 'amin'))!r}, include_self=False)", "scatter": f"{h}.scatter(1, torch.randint({g}, ({r}, 1)), 0.3)",
               "index_put": f"{h}.new_zeros({r}, {g}).index_put_((torch.randperm({r}),), {source})", "index_copy": f"torch.zeros({r}, {g}).index_copy(0, torch.randperm({r}), {source})", "segment_mean": f"{h}.new_zeros(4, {g}).index_add_(0, {index}, {source}) / {h}.new_zeros(4, 1).index_add_(0, {index}, {h}.new_ones({r}, 1)).clamp(min=1)",
               "index_fill": f"{h}.index_fill(1, torch.tensor([0]), 0.2)", "masked_scatter": f"torch.zeros_like({h}).masked_scatter({h} > 0, {source})", "put": f"torch.zeros({r} * {g}).put(torch.arange({r} * {g}), {source})", "one_hot_matmul": f"F.one_hot({index}, 4).double().T @ {h}",
               "select_scatter": f"torch.select_scatter({h}, {h}[0] * 2, 0, {r} - 1)", "slice_scatter": f"torch.slice_scatter({h}, {h}[:1] * 3, 0, 0, 1)", "diagonal_scatter": f"{h} + torch.diag_embed({h}[0])[:1, 0] * 0.1", "bincount": f"{h} * torch.bincount({index}, minlength={g})[:{g}]"}
    key = c.any(choices)
    if not c.add(f"{name} = {choices[key]}", (name,), (key,)):
        return False
    if c.one_in(2) and c.sizes(name)[0] == 4:
        c.let(f"{name}[{index}] + {h}", "gathered_back")
    return True
