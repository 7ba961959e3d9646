"""What a step is made of: each function adds one or a few statements to a context, or none."""

WEIGHTS = {}


def kind(weight):
    def register(function):
        WEIGHTS[function] = weight
        return function
    return register


UNARY = """relu tanh sigmoid sin cos square abs neg atan erf asinh expm1 sign floor positive clone frac trunc deg2rad sinc i0 exp2 rad2deg nan_to_num sgn erfc
hardshrink fliplr flipud ravel atleast_2d atleast_3d zeros_like ones_like logical_not signbit isfinite""".split()
FUNCTIONAL = "gelu silu softplus elu leaky_relu hardtanh mish selu celu logsigmoid hardswish hardsigmoid relu6 softsign tanhshrink softshrink normalize".split()
SAFE = {"exp": "({}).clamp(max=3).exp()", "sqrt": "(({}).abs() + 0.1).sqrt()", "rsqrt": "(({}).abs() + 0.3).rsqrt()", "log1p": "({}).abs().log1p()", "log": "(({}).abs() + 0.2).log()",
        "reciprocal": "(({}).abs() + 0.5).reciprocal()", "lgamma": "(({}).abs() + 1).lgamma()", "digamma": "(({}).abs() + 1).digamma()", "pow": "({}) ** 2", "rsub": "1 - {}", "div": "{} / 3",
        "mul": "{} * 1.3", "add": "{} + 0.4", "clamp": "({}).clamp(-0.9, 1.1)", "clamp_min": "({}).clamp(min=0.1)", "rpow": "1.5 ** ({}).clamp(-3, 3)", "rdiv": "2 / (({}).abs() + 0.7)", "threshold": "F.threshold({}, 0.1, 0.3)",
        "logit": "torch.logit({}, eps=0.1)", "contiguous": "({}).contiguous()", "neg_pow": "(({}).abs() + 0.5) ** -1.5", "rrelu": "F.rrelu({}, training=False)", "cumsum": "({}).cumsum(-1)", "cumprod": "({}).clamp(-1.5, 1.5).cumprod(-1)",
        "polygamma": "torch.polygamma(1, ({}).abs() + 1)", "xlogy": "torch.xlogy(({}).abs(), ({}).abs() + 0.5)", "remainder": "torch.remainder({}, 0.77)", "fmod": "torch.fmod({}, 0.77)", "ldexp": "torch.ldexp({}, torch.tensor(2))",
        "tensor_scalar": "{} * torch.tensor(0.7)", "to": "({}).to(torch.float64, copy=True)", "type_as": "({}).type_as({})", "vander": "torch.vander(({}).flatten()[:4], N=3)", "float_power": "torch.float_power({}, 2)"}


@kind(9)
def unary(c):
    h = c.pick()
    choice = c.random.randrange(4)
    if choice < 2:
        name = c.any(UNARY)
        return c.let(f"torch.{name}({h})", name)
    if choice == 2:
        name = c.any(FUNCTIONAL)
        return c.let(f"F.{name}({h})", name)
    name = c.any(SAFE)
    return c.let(SAFE[name].replace("{}", h), name)


BINARY = {"add": "{a} + {b}", "sub": "{a} - {b}", "mul": "{a} * {b}", "div": "{a} / ({b}.abs() + 0.8)", "maximum": "torch.maximum({a}, {b})", "minimum": "torch.minimum({a}, {b})", "atan2": "torch.atan2({a}, {b}.abs() + 0.5)",
          "hypot": "torch.hypot({a}, {b})", "logaddexp": "torch.logaddexp({a}, {b})", "lerp": "torch.lerp({a}, {b}, 0.3)", "where": "torch.where({a} > 0.1, {a}, {b})", "add_alpha": "torch.add({a}, {b}, alpha=0.3)",
          "addcmul": "torch.addcmul({a}, {a}, {b}, value=0.4)", "addcdiv": "torch.addcdiv({a}, {a}, {b}.abs() + 0.6)", "rsub": "torch.rsub({a}, {b}, alpha=0.5)", "masked_fill": "{a}.masked_fill({b} > 0.2, -0.4)",
          "fmax": "torch.fmax({a}, {b})", "copysign": "torch.copysign({a}, {b})", "mse": "F.mse_loss({a}, {b}, reduction='none')", "smooth_l1": "F.smooth_l1_loss({a}, {b}, reduction='none')",
          "bce": "F.binary_cross_entropy_with_logits({a}, {b}.sigmoid(), reduction='none')", "pow": "({a}.abs() + 0.5) ** {b}.clamp(-2, 2)", "heaviside": "{a} * ({b} > {a}).double()", "where_mask": "torch.where(({a} > 0) & ({b} > 0), {a} * 2, {b})",
          "true_divide": "torch.true_divide({a}, {b}.square() + 1)", "logical": "{a} * torch.logical_xor({a} > 0, {b} > 0)", "dist_none": "({a} - {b}).square()", "xlogy": "torch.xlogy({a}.abs(), {b}.abs() + 0.5)", "gate": "{a} * {b}.sigmoid()"}


def broadcastable(a, b):
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b)))


@kind(8)
def binary(c):
    a = c.pick()
    if c.one_in(6) and c.sizes(a):
        b = c.parameter(c.sizes(a)[-1]) if c.one_in(2) else c.parameter()
    else:
        b = c.pick(lambda sizes: broadcastable(sizes, c.sizes(a)), recent=False)
    if b is None:
        return False
    name = c.any(BINARY)
    if c.one_in(2):
        a, b = b, a
    return c.let(BINARY[name].format(a=a, b=b), name)


REDUCE = {"sum": "{h}.sum({d}, keepdim={k})", "mean": "{h}.mean({d}, keepdim={k})", "amax": "{h}.amax({d}, keepdim={k})", "amin": "{h}.amin({d}, keepdim={k})", "logsumexp": "{h}.logsumexp({d}, keepdim={k})",
          "norm": "torch.linalg.vector_norm({h} + 0.01, dim={d}, keepdim={k})", "norm1": "({h} + 0.01).norm(1, dim={d}, keepdim={k})", "var": "{h}.var({d}, keepdim={k})", "std": "({h} + 0.1 * torch.arange({n}).view({v}).double()).std({d}, keepdim={k})",
          "max": "{h}.max({d}, keepdim={k}).values", "min": "{h}.min({d}, keepdim={k})[0]", "median": "{h}.median({d}, keepdim={k}).values", "prod": "{h}.clamp(-1.2, 1.2).prod({d}, keepdim={k})", "var_mean": "torch.var_mean({h}, {d}, keepdim={k})[0]",
          "nansum": "{h}.nansum({d}, keepdim={k})", "sum_all": "{h}.sum()", "mean_all": "{h}.mean()", "max_all": "{h}.max()", "count_nonzero": "torch.count_nonzero({h} > 0.1, {d}).double()", "any": "({h} > 1).any({d}, keepdim={k}).double()",
          "all": "({h} > -1).all({d}, keepdim={k}).double()", "mode": "({h} * 2).round().mode({d}, keepdim={k}).values", "quantile": "{h}.quantile(0.4, dim={d}, keepdim={k})", "kthvalue": "{h}.kthvalue(1, {d}, keepdim={k}).values",
          "argmax": "{h}.argmax({d}, keepdim={k}).double()", "trapezoid": "torch.trapezoid({h}, dim={d})", "aminmax": "torch.aminmax({h}, dim={d}, keepdim={k}).max"}
ALONG = {"softmax": "{h}.softmax({d})", "log_softmax": "{h}.log_softmax({d})", "cumsum": "{h}.cumsum({d})", "sort": "{h}.sort({d}).values", "flip": "{h}.flip({d})", "roll": "{h}.roll(1, {d})", "normalize": "F.normalize({h}, dim={d})",
         "cummax": "{h}.cummax({d}).values", "logcumsumexp": "{h}.logcumsumexp({d})", "diff": "{h}.diff(dim={d})", "softmin": "F.softmin({h}, dim={d})", "topk": "{h}.topk(min(2, {h}.shape[{d}]), dim={d}).values", "center": "{h} - {h}.mean({d}, keepdim=True)",
         "standardize": "({h} - {h}.mean({d}, keepdim=True)) / ({h}.var({d}, keepdim=True, unbiased=False) + 0.1).sqrt()", "argsort": "{h}.gather({d}, {h}.argsort({d}))", "renorm": "{h}.renorm(2, {d}, 1.5)", "rank": "{h}.argsort({d}).argsort({d}).double()",
         "fft": "torch.fft.rfft({h}, dim={d}).abs()", "glu": "F.glu({h}, {d})", "cumprod": "{h}.clamp(-1.3, 1.3).cumprod({d})", "max_minus": "{h}.amax({d}, keepdim=True) - {h}"}


@kind(5)
def reduction(c):
    h = c.pick(lambda sizes: len(sizes) > 0)
    if h is None:
        return False
    d = c.dim(h)
    name = c.any(REDUCE)
    n = c.sizes(h)[d]
    view = [1] * len(c.sizes(h))
    view[d] = -1
    dims = d if name not in ("sum", "mean", "amax", "logsumexp", "norm", "var") or not c.one_in(4) or len(c.sizes(h)) < 2 else "({}, {})".format(*c.random.sample(range(len(c.sizes(h))), 2))
    return c.let(REDUCE[name].format(h=h, d=dims, k=c.one_in(2), n=c.size(n), v=", ".join(map(str, view))), name)


@kind(4)
def along(c):
    h = c.pick(lambda sizes: len(sizes) > 0)
    if h is None:
        return False
    name = c.any(ALONG)
    return c.let(ALONG[name].format(h=h, d=c.dim(h)), name)


# ---- products --------------------------------------------------------------------------------------------------------------------


@kind(5)
def product(c):
    h = c.pick(lambda sizes: len(sizes) >= 2)
    if h is None:
        return False
    sizes = c.sizes(h)
    inner, out = sizes[-1], c.any((2, 3, 4, 5, 8, c.rows or 3))
    choice = c.any("matmul linear linear_bias einsum similarity addmm bmm transposed outer baddbmm tensordot mv gram chain".split())
    if choice in ("similarity", "gram"):
        other = c.pick(lambda other: len(other) == len(sizes) and other[-1] == inner and other[:-2] == sizes[:-2]) or h
        return c.let(f"{h} @ {other}.transpose(-1, -2) * 0.3" if choice == "similarity" else f"{h}.mT @ {other} * 0.2", choice)
    if choice == "outer":
        return c.let(f"{h}.unsqueeze(-1) * {h}.unsqueeze(-2)", "outer")
    if choice == "mv":
        return c.let(f"{h} @ {c.parameter(inner)}", "mv")
    if choice == "chain":
        return c.let(f"torch.linalg.multi_dot([{h}, {c.parameter(inner, out)}, {c.parameter(out, 3)}])" if len(sizes) == 2 else f"({h} @ {c.parameter(inner, out)}) @ {c.parameter(out, 3)}", "multi_dot")
    w = c.parameter(inner, out) if choice not in ("linear", "linear_bias") else c.parameter(out, inner)
    if w is None:
        return False
    text = {"matmul": f"{h} @ {w}", "linear": f"F.linear({h}, {w})", "linear_bias": f"F.linear({h}, {w}, {c.parameter(out)})", "einsum": f"torch.einsum('...i,ij->...j', {h}, {w})", "addmm": f"torch.addmm({c.parameter(out)}, {h}, {w}, beta=0.5)",
            "bmm": f"torch.bmm({h}, {w}.expand({c.size(sizes[0])}, -1, -1))", "transposed": f"({w}.t() @ {h}.transpose(-1, -2)).transpose(-1, -2)", "baddbmm": f"torch.baddbmm({c.parameter(out)}, {h}, {w}.expand({c.size(sizes[0])}, -1, -1), alpha=0.7)",
            "tensordot": f"torch.tensordot({h}, {w}, dims=1)"}[choice]
    return c.let(text, choice)


@kind(2)
def attention(c):
    h = c.pick(lambda sizes: len(sizes) == 3 and sizes[-1] % 2 == 0)
    if h is None:
        return False
    b, t, f = c.sizes(h)
    choice = c.random.randrange(4)
    if choice == 0:
        w = c.parameter(f, 3 * f)
        q = c.new("h")
        return c.add(f"q0, k0, v0 = ({h} @ {w} * 0.4).unflatten(-1, (3, 2, {f // 2})).permute(2, 0, 3, 1, 4)\n{q} = F.scaled_dot_product_attention(q0, k0, v0{', is_causal=True' if c.one_in(2) else ''}).transpose(1, 2).flatten(2)", (q,), ("sdpa",))
    if choice == 1:
        m = c.module(("mha", f), f"nn.MultiheadAttention({f}, 2, batch_first=True)")
        return c.let(f"{m}({h}, {h}, {h}, need_weights={c.one_in(2)})[0]", "mha")
    if choice == 2:
        m = c.module(("encoder", f), f"nn.TransformerEncoderLayer({f}, 2, 6, dropout=0.0, batch_first={not c.one_in(3)}, norm_first={c.one_in(2)})")
        return c.let(f"{m}({h})", "encoder_layer")
    return c.let(f"({h} @ {h}.mT / 2 + torch.full(({c.size(t)}, {c.size(t)}), -1e9).triu(1)).softmax(-1) @ {h}", "causal_attention")


# ---- modules ---------------------------------------------------------------------------------------------------------------------


@kind(8)
def module(c):
    h = c.pick(lambda sizes: len(sizes) >= 2)
    if h is None:
        return False
    sizes = c.sizes(h)
    f, out = sizes[-1], c.any((3, 4, 6, 8))
    choices = {"linear": (("linear", f), f"nn.Linear({f}, {out})"), "square": (("square", f), f"nn.Linear({f}, {f})"), "layer_norm": (("layer_norm", f), f"nn.LayerNorm({f})"), "rms_norm": (("rms_norm", f), f"nn.RMSNorm({f})"),
               "mlp": (("mlp", f), f"nn.Sequential(nn.Linear({f}, 7), nn.{c.any(('ReLU()', 'GELU()', 'Tanh()', 'ReLU(inplace=True)', 'SiLU()'))}, nn.Linear(7, {out}))"), "prelu": (("prelu",), "nn.PReLU()"),
               "weight_norm": (("linear", f), f"nn.utils.parametrizations.weight_norm(nn.Linear({f}, {out}))"), "spectral_norm": (("spectral", f), f"nn.utils.parametrizations.spectral_norm(nn.Linear({f}, {out}))"),
               "weight_norm_old": (("linear", f), f"nn.utils.weight_norm(nn.Linear({f}, {out}))")}
    if len(sizes) == 2:
        choices |= {"batch_norm": (("bn1", f), f"nn.BatchNorm1d({f})"), "batch_norm_mlp": (("bnmlp", f), f"nn.Sequential(nn.Linear({f}, 6), nn.BatchNorm1d(6), nn.ReLU({'inplace=True' if c.one_in(2) else ''}), nn.Linear(6, {out}))"),
                    "group_norm": (("group1", f), f"nn.GroupNorm(1, {f})"), "batch_norm_plain": (("bnp", f), f"nn.BatchNorm1d({f}, affine=False, momentum=None)")}
    if len(sizes) == 3:
        ch = sizes[1]
        choices |= {"batch_norm_3": (("bn3", ch), f"nn.BatchNorm1d({ch})"), "conv1d": (("conv1", ch, f), f"nn.Conv1d({ch}, {out}, 3, padding=1)"), "instance_norm": (("in1", ch), f"nn.InstanceNorm1d({ch}, affine=True, track_running_stats={c.one_in(2)})"),
                    "max_pool1d": (("mp1",), "nn.MaxPool1d(2)"), "avg_pool1d": (("ap1",), "nn.AvgPool1d(2)"), "conv_transpose1d": (("ct1", ch), f"nn.ConvTranspose1d({ch}, 3, 2)"), "group_norm_3": (("gn3", ch), f"nn.GroupNorm(1, {ch})"),
                    "upsample1d": (("up1",), "nn.Upsample(scale_factor=2)"), "adaptive1d": (("ad1",), "nn.AdaptiveAvgPool1d(3)")}
    if len(sizes) == 4:
        ch = sizes[1]
        choices |= {"conv2d": (("conv2", ch), f"nn.Conv2d({ch}, {out}, 3, padding=1, stride={c.any((1, 1, 2))})"), "batch_norm_2d": (("bn2", ch), f"nn.BatchNorm2d({ch})"), "depthwise": (("dw", ch), f"nn.Conv2d({ch}, {ch}, 3, padding=1, groups={ch})"),
                    "block": (("block", ch), f"nn.Sequential(nn.Conv2d({ch}, {out}, 3, padding=1, bias=False), nn.BatchNorm2d({out}), nn.ReLU(inplace=True))"), "max_pool": (("mp2",), "nn.MaxPool2d(2)"), "avg_pool": (("ap2",), "nn.AvgPool2d(2)"),
                    "adaptive": (("ad2",), "nn.AdaptiveAvgPool2d(1)"), "conv_transpose": (("ct2", ch), f"nn.ConvTranspose2d({ch}, 3, 2, stride=2)"), "group_norm_4": (("gn4", ch), f"nn.GroupNorm(1, {ch})"), "upsample": (("up2",), "nn.Upsample(scale_factor=2, mode='bilinear')"),
                    "unfold": (("uf",), "nn.Unfold(2)"), "instance_norm_2d": (("in2", ch), f"nn.InstanceNorm2d({ch})"), "pixel_unshuffle": (("pu",), "nn.PixelUnshuffle(2)"), "lrn": (("lrn",), "nn.LocalResponseNorm(2)"), "adaptive_max": (("am",), "nn.AdaptiveMaxPool2d(2)"),
                    "reflection": (("rp",), "nn.ReflectionPad2d(1)"), "channel_shuffle": (("cs", ch), f"nn.ChannelShuffle({2 if ch % 2 == 0 else 1})")}
    name = c.any(choices)
    m = c.module(*choices[name])
    return m is not None and c.let(f"{m}({h})", name)


@kind(2)
def recurrent(c):
    h = c.pick(lambda sizes: len(sizes) == 3)
    if h is None:
        return False
    f = c.sizes(h)[-1]
    name, batch_first = c.any(("GRU", "LSTM", "RNN")), c.one_in(2)
    if c.one_in(4):
        cell = c.module(("cell", f, name), f"nn.{name}Cell({f}, {f})")
        state, out = c.new("h"), c.new("h")
        first = "(torch.zeros_like({h}[:, 0]),) * 2" if name == "LSTM" else "torch.zeros_like({h}[:, 0])"
        return c.add(f"{state} = {first.format(h=h)}\n{out} = []\nfor t in range({h}.shape[1]):\n    {state} = {cell}({h}[:, t], {state})\n    {out}.append({state}{'[0]' if name == 'LSTM' else ''})\n{state} = {out}[-1]\n{out} = torch.stack({out}, 1)",
                     (state, out), (name + "Cell",))
    m = c.module(("rnn", f, name, batch_first), f"nn.{name}({f}, 4, batch_first={batch_first}, bidirectional={c.one_in(3)}, num_layers={c.any((1, 1, 2))})")
    if c.one_in(2):
        return c.let(f"{m}({h})[0]", name)
    return c.let(f"{m}({h})[1]{'[0]' if name == 'LSTM' else ''}", name + "_last")


@kind(2)
def embedding(c):
    if c.one_in(3) or not c.whole:
        h = c.pick(lambda sizes: len(sizes) >= 1)
        if h is None:
            return False
        tokens = c.new("h")
        if not c.add(f"{tokens} = ({h}.detach() * 3).long().clamp(0, 6)", (tokens,), ("long",)):
            return False
    else:
        tokens = c.any([name for name in c.whole if c.tensor(name).dtype.is_signed] or [None])
        if tokens is None:
            return False
    choice = c.random.randrange(5)
    if choice < 2:
        m = c.module(("embedding",), f"nn.Embedding(7, 4{', padding_idx=0' if c.one_in(2) else ''})")
        return c.let(f"{m}({tokens} % 7)", "embedding")
    if choice == 2:
        return c.let(f"F.embedding({tokens} % 5, {c.parameter(5, 3)})", "F.embedding")
    if choice == 3:
        return c.let(f"F.one_hot({tokens} % 6, 6).double()", "one_hot")
    m = c.module(("bag",), f"nn.EmbeddingBag(7, 4, mode={c.any(('sum', 'mean', 'max'))!r})")
    return c.let(f"{m}({tokens} % 7)", "embedding_bag")


# ---- shapes ----------------------------------------------------------------------------------------------------------------------


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
    name = c.any(choices)
    return c.let(choices[name], name)


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
    name = c.any(choices)
    return c.let(choices[name], name)


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
               "mask": f"{h}[{h} > {h}.detach().median()]", "mask_rows": f"{h}[{h}.flatten(1).sum(1) >= {h}.flatten(1).sum(1).median()]" if len(sizes) >= 2 else f"{h}[{h} > -9]", "masked_select": f"{h}.masked_select({h} > 0)", "take_along": f"{h}.take_along_dim({h}.argsort({d}), {d})",
               "arange": f"{h}[torch.arange({rows}), {h}.flatten(1).argmax(1) % {sizes[1] if len(sizes) > 1 else 1}]", "argmax_gather": f"{h}.gather({d}, {h}.argmax({d}, keepdim=True))", "where": f"torch.where({h} > 0, {h}, {c.parameter()})", "two": f"{h}[torch.arange({rows})[:, None], torch.tensor([[0, 0]])]",
               "first_rows": f"{h}[:{rows} // 2]", "nonzero": f"{h}[({h}.flatten(1)[:, 0] > -5).nonzero().squeeze(1)]" if len(sizes) >= 2 else f"{h}[({h} > 0).nonzero(as_tuple=True)]", "bool_row": f"{h}[torch.rand({rows}) > 0.01]", "pairs": f"{h}[torch.combinations(torch.arange(min(4, {rows})))[:, 0]]",
               "searchsorted": f"torch.searchsorted(torch.linspace(-1, 1, 5), {h}.detach().contiguous()).double()", "bucketize": f"torch.bucketize({h}.detach(), torch.linspace(-1, 1, 4)).double() * {h}", "triu_indices": f"{h}[..., 0, 0]"}
    name = c.any(choices)
    return c.let(choices[name], name)


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


# ---- writes ----------------------------------------------------------------------------------------------------------------------


@kind(5)
def in_place(c):
    h = c.pick(lambda sizes: len(sizes) >= 1)
    if h is None or h[0] == "x":
        return False
    sizes = c.sizes(h)
    same = c.pick(lambda other: other == sizes, recent=False) or h
    other = f"{same}" if same != h else f"{h}.detach()"
    if c.one_in(2):
        # On a copy: what autograd has saved of the original stays good.
        copy = c.new("h")
        if not c.add(f"{copy} = {h} * 1.0" if c.one_in(2) else f"{copy} = {h}.clone()", (copy,), ("clone",)):
            return False
        h = copy
    half = f"{h}[..., :1]"
    choices = {"mul_": f"{h}.mul_(0.7)", "add_": f"{h}.add_({other}, alpha=0.3)", "relu_": f"{h}.relu_()", "tanh_": f"{h}.tanh_()", "clamp_": f"{h}.clamp_(-1, 1)", "iadd": f"{h} += {other}", "imul": f"{h} *= 0.9", "fill_column": f"{h}[..., 0] = 0", "fill_row": f"{h}[0] = 0.5", "zero_": f"{half}.zero_()",
               "masked_fill_": f"{h}.masked_fill_({h}.detach() > 0.5, 0.1)", "copy_slice": f"{half}.copy_({other}[..., :1])", "set_rows": f"{h}[1:] = {other}[1:] * 2", "mask_assign": f"{h}[{h}.detach() > 0.3] = 0.2", "view_mul": f"{h}.view(-1)[:2].mul_(2)", "view_add": f"{h}.view({c.size(sizes[0])}, -1).add_(0.1)",
               "transpose_write": f"{h}.transpose(0, -1).add_(0.3)", "relu_inplace": f"F.relu({h}, inplace=True)", "leaky_inplace": f"F.leaky_relu({h}, 0.1, inplace=True)", "addcmul_": f"{h}.addcmul_({other}, {other}, value=0.2)", "copy_": f"{h}.copy_({other})", "select_write": f"{h}.select(0, 0).mul_(3)", "sub_": f"{h}.sub_(0.2)",
               "div_": f"{h}.div_(2)", "detach_write": f"{h}.detach().add_(0.1)", "view_of_view": f"{h}.view(-1).view({c.list_of(sizes)})[0].add_(1)", "diagonal_write": f"{h}.diagonal(dim1=0, dim2=-1).add_(1)", "index_put_": f"{h}[torch.tensor([0])] = {other}[:1] * 0.4", "index_add_": f"{h}.index_add_(0, torch.tensor([0]), {other}[:1])",
               "unsqueeze_": f"{h}.unsqueeze_(0)", "squeeze_": f"{h}.squeeze_()", "t_": f"{h}.t_()", "transpose_": f"{h}.transpose_(0, -1)", "index_fill_": f"{h}.index_fill_(0, torch.tensor([0]), 0.3)", "chunk_write": f"for part in {h}.chunk(2, 0):\n    part.mul_(1.1)", "unbind_write": f"{h}[0].add_({h}[-1].detach())",
               "lerp_": f"{h}.lerp_({other}, 0.4)", "sigmoid_": f"{h}.sigmoid_()", "cumsum_": f"{h}.cumsum_(0)", "scatter_": f"{h}.scatter_(-1, torch.zeros({', '.join(['1'] * len(sizes))}, dtype=torch.long), 0.6)", "set_data": f"{h}.data.mul_(1.01)", "marked": f"{h} = Marked.apply({h})", "floor_div_": f"{h}.neg_()",
               "pow_": f"{h}.pow_(2)", "no_grad_write": f"with torch.no_grad():\n    {h}.mul_(0.98)", "exp_": f"{h}.clamp_(max=1).exp_()"}
    name = c.any(choices)
    return c.add(choices[name], (h,) if choices[name].startswith(f"{h} =") else (), (name,))


@kind(2)
def out_argument(c):
    """Operators with out=, and writes into state that outlives the step."""
    h = c.pick(lambda sizes: 1 <= len(sizes) <= 3)
    if h is None:
        return False
    sizes = c.sizes(h)
    f = sizes[-1]
    if c.one_in(2):
        name = c.new("h")
        function = c.any(("torch.tanh({h}", "torch.add({h}, 0.3", "torch.mul({h}, 2", "torch.cat([{h}, {h}]", "torch.sum({h}, 0", "torch.abs({h}", "torch.cumsum({h}, 0", "torch.sort({h}, 0")).format(h=f"{h}.detach()")
        if "sort" in function:
            return c.add(f"{name} = torch.empty(0)\n{function}, out=({name}, torch.empty(0, dtype=torch.long)))", (name,), ("out=",))
        return c.add(f"{name} = torch.empty(0)\n{function}, out={name})", (name,), ("out=",))
    s = c.setup("s", f"torch.zeros({f})" if c.one_in(2) else f"torch.randn({f})")
    row = f"{h}.detach().reshape(-1, {f}).mean(0)"
    write = c.any((f"{s}.mul_(0.9).add_({row}, alpha=0.1)", f"{s}.lerp_({row}, 0.2)", f"{s}.copy_({s} * 0.5 + {row})", f"{s}[:1] += {row}[:1]", f"{s} += {row}", f"torch.add({s}, {row}, out={s})"))
    before = c.one_in(2) and c.let(f"{h} - {s}.clone()", "state_read")
    if not c.add(f"with torch.no_grad():\n    {write}", (), ("state_write",)):
        return False
    return (not c.one_in(2) or c.let(f"{h} + {s}.clone() * 0.3", "state_read")) or before


# ---- what surrounds operators ----------------------------------------------------------------------------------------------------


@kind(3)
def detached(c):
    h = c.pick()
    name = c.new("h")
    choices = {"detach": f"{name} = {h}.detach()", "no_grad": f"with torch.no_grad():\n    {name} = ({h} * 1.5).tanh()", "stop": f"{name} = {h} + ({h}.tanh() - {h}).detach()", "inference_copy": f"{name} = {h}.clone().detach()", "data": f"{name} = {h}.data * 1.0",
               "requires": f"{name} = {h}.detach().requires_grad_()", "no_grad_mean": f"with torch.no_grad():\n    {name} = {h}.mean(0, keepdim=True)\n{name} = {h} - {name}", "set_grad": f"torch.set_grad_enabled(False)\n{name} = {h} * 2\ntorch.set_grad_enabled(True)",
               "tensor": f"{name} = torch.as_tensor({h}.detach().numpy().copy())", "item_scale": f"{name} = {h} * ({h}.detach().abs().mean().item() + 0.5)"}
    key = c.any(choices)
    return c.add(choices[key], (name,), (key,))


BLOCKS = ("torch.tanh({x} * 1.5) + {x}", "F.gelu({x} @ {w}) @ {v}", "F.layer_norm({x}, ({f},)).relu()", "({x} @ {w}).softmax(-1) @ {v}", "{m}({x})", "{x} * {x}.sigmoid() + {x}.mean(-1, keepdim=True)", "({x} - {x}.mean(0)).sin()")


@kind(3)
def wrapped(c):
    """Checkpoints, Functions of the program's own, autocast."""
    h = c.pick(lambda sizes: 2 <= len(sizes) <= 3)
    if h is None:
        return False
    f = c.sizes(h)[-1]
    choice = c.random.randrange(9)
    if choice <= 2:
        m = c.module(("square_mlp", f), f"nn.Sequential(nn.Linear({f}, 5), nn.Tanh(), nn.Linear(5, {f}))")
        block = c.any(BLOCKS).format(x="x", w=c.parameter(f, 5), v=c.parameter(5, f), f=f, m=m)
        if choice == 2:
            return c.let(f"checkpoint({m}, {h}, use_reentrant={c.one_in(2)})", "checkpoint")
        return c.let(f"checkpoint(lambda x: {block}, {h}, use_reentrant={c.one_in(2)})", "checkpoint")
    if choice <= 5:
        return c.let(c.any(("Scale.apply({h})", "Square.apply({h})", "Halves.apply({h}, 0.7)[0]", "Identity.apply({h})", "Bent.apply({h})", "Halves.apply(Scale.apply({h}), 1.3)[0]")).format(h=h), "Function")
    if choice == 6:
        return c.let(f"torch.vmap(lambda row: (row * 2).tanh() + row.sum())({h})", "vmap")
    if choice == 7:
        return c.let(f"torch.func.functional_call({c.module(('linear', f), f'nn.Linear({f}, 3)')}, {{}}, ({h},))", "functional_call")
    return c.let(f"torch.jit.script(lambda_)({h})" if False else f"torch.utils.checkpoint.checkpoint_sequential([nn.Tanh(), nn.Softsign()], 1, {h}, use_reentrant=False)", "checkpoint_sequential")


@kind(3)
def reading(c):
    """The program reads a value in the middle of the step."""
    h = c.pick()
    name = c.new("h")
    choices = {"item": f"note.value('item', {h}.mean().item())", "sum": f"note.value('sum', float({h}.sum()))", "tolist": f"note.value('list', {h}.detach().flatten()[:3].tolist())", "if": f"{name} = {h} * 2 if {h}.mean() > 0.05 else {h} - 1", "allclose": f"note.value('close', torch.allclose({h}, {h} * 1.5))",
               "any": f"note.value('any', bool(({h} > 2).any()))", "norm": f"note.value('norm', {h}.detach().norm().item())", "assert": f"assert torch.isfinite({h}).all()", "numpy": f"note.value('numpy', {h}.detach().numpy().copy().tolist())", "repr": f"note.value('shape', str(tuple({h}.shape)) + str({h}.dtype))",
               "argmax": f"note.value('argmax', {h}.flatten().argmax().item())", "copy": f"note.value('copy', {h})", "equal": f"note.value('equal', torch.equal({h}, {h}.clone()))", "keep": f"note.keep({name!r}, {h})", "keep_detached": f"note.keep({name!r}, {h}.detach())", "print": f"note.value('print', str({h}.detach().flatten()[:4]))",
               "while": f"{name} = {h}\nwhile {name}.abs().max() > 1.5:\n    {name} = {name} * 0.5", "count": f"note.value('count', int(({h} > 0).sum()))", "unique": f"note.value('unique', len(torch.unique(({h} * 4).round())))", "nan": f"note.value('nan', torch.isnan({h}).any().item())", "len": f"note.value('len', len({h}.flatten()))",
               "iter": f"note.value('rows', [row.sum().item() for row in {h}.reshape(-1, 1)[:3]])", "keep_view": f"note.keep({name!r}, {h}[..., :1])", "clone_keep": f"note.keep({name!r}, {h}.clone())", "keep_sum": f"note.keep({name!r}, {h}.sum(0))"}
    key = c.any(choices)
    return c.add(choices[key], (name,) if choices[key].startswith(name) else (), ("read_" + key,))


@kind(2)
def drawn(c):
    """Noise of the batch's shape, and masks."""
    h = c.pick()
    sizes = c.list_of(c.sizes(h))
    choices = {"randn_like": f"{h} + torch.randn_like({h}) * 0.1", "rand": f"{h} * (torch.rand({sizes}) > 0.3)" if c.sizes(h) else f"{h} * torch.rand(())", "mask": f"{h} * (torch.rand_like({h}) < 0.7) / 0.7", "normal": f"{h} + torch.normal(0.0, 0.1, {h}.shape)", "uniform": f"{h} * torch.empty_like({h}).uniform_(0.5, 1.5)",
               "mixup": f"{h} * 0.7 + {h}[torch.randperm({h}.shape[0])] * 0.3" if c.sizes(h) else h, "eps": f"torch.empty_like({h}).normal_() * {h}.clamp(max=1).exp() + {h}", "randint": f"{h} * torch.randint_like({h}, 1, 4)", "scalar": f"{h} * torch.rand(()).item()"}
    key = c.any(choices)
    return c.let(choices[key], key)


@kind(1)
def generated(c):
    """A loop without gradients before the loss, and evaluation."""
    h = c.pick(lambda sizes: len(sizes) == 2)
    if h is None:
        return False
    f = c.sizes(h)[-1]
    m = c.module(("square", f), f"nn.Linear({f}, {f})")
    name = c.new("h")
    return c.add(f"with torch.{c.any(('no_grad', 'no_grad', 'inference_mode'))}():\n    {name} = {h}\n    for _ in range(3):\n        {name} = torch.tanh({m}({name}))\n    {name} = {name}.clone()\n{name} = {name}.clone() + {h} * 0.1", (name,), ("generation",))


@kind(1)
def hooked(c):
    h = c.pick()
    if not c.tensor(h).requires_grad:
        return False
    name = c.new("h")
    return c.add(c.any((f"{h}.register_hook(lambda gradient: gradient * 0.5)", f"{name} = {h} * 1\n{name}.retain_grad()", f"{name} = {h}.tanh()\n{name}.register_hook(lambda gradient: note.value('hook', gradient))")), (), ("hook",))


@kind(2)
def linear_algebra(c):
    h = c.pick(lambda sizes: len(sizes) >= 2 and sizes[-1] <= 8 and sizes[-2] <= 16)
    if h is None:
        return False
    square = f"({h}.mT @ {h} * 0.2 + 2 * torch.eye({c.size(c.sizes(h)[-1])}))"
    choices = {"inv": f"torch.linalg.inv({square})", "solve": f"torch.linalg.solve({square}, {h}.mT)", "cholesky": f"torch.linalg.cholesky({square})", "det": f"torch.linalg.det({square})", "slogdet": f"torch.logdet({square})", "trace": f"{square}.diagonal(dim1=-2, dim2=-1).sum(-1)", "matrix_norm": f"torch.linalg.matrix_norm({h})",
               "matrix_exp": f"torch.linalg.matrix_exp({square} * 0.1)", "svdvals": f"torch.linalg.svdvals({square} + torch.diag(torch.arange({c.size(c.sizes(h)[-1])}).double()))", "matrix_power": f"torch.linalg.matrix_power({square} * 0.3, 2)", "cov": f"torch.cov({h}.flatten(1).T)", "corr": f"torch.corrcoef({h}.flatten(1).T + torch.eye(*{h}.flatten(1).T.shape))",
               "triangular": f"torch.linalg.solve_triangular({square}.triu(), {h}.mT, upper=True)", "pinv": f"torch.linalg.pinv({square})", "gram_trace": f"({h} * {h}).sum((-1, -2))"}
    name = c.any(choices)
    return c.let(choices[name], name)
