"""Operators on values, and modules."""

from kinds import kind

UNARY = """relu tanh sigmoid sin cos square abs neg atan erf asinh expm1 sign floor positive clone frac trunc deg2rad sinc i0 exp2 rad2deg nan_to_num sgn erfc
hardshrink fliplr flipud ravel atleast_2d atleast_3d zeros_like ones_like logical_not signbit isfinite""".split()
FUNCTIONAL = "gelu silu softplus elu leaky_relu hardtanh mish selu celu logsigmoid hardswish hardsigmoid relu6 softsign tanhshrink softshrink normalize".split()
SAFE = {"exp": "({}).clamp(max=3).exp()", "sqrt": "(({}).abs() + 0.1).sqrt()", "rsqrt": "(({}).abs() + 0.3).rsqrt()", "log1p": "({}).abs().log1p()", "log": "(({}).abs() + 0.2).log()",
        "reciprocal": "(({}).abs() + 0.5).reciprocal()", "lgamma": "(({}).abs() + 1).lgamma()", "digamma": "(({}).abs() + 1).digamma()", "pow": "({}) ** 2", "rsub": "1 - {}", "div": "{} / 3",
        "mul": "{} * 1.3", "add": "{} + 0.4", "clamp": "({}).clamp(-0.9, 1.1)", "clamp_min": "({}).clamp(min=0.1)", "rpow": "1.5 ** ({}).clamp(-3, 3)", "rdiv": "2 / (({}).abs() + 0.7)", "threshold": "F.threshold({}, 0.1, 0.3)",
        "logit": "torch.logit({}, eps=0.1)", "contiguous": "({}).contiguous()", "neg_pow": "(({}).abs() + 0.5) ** -1.5", "rrelu": "F.rrelu({}, training=False)", "cumsum": "({}).cumsum(-1)", "cumprod": "({}).clamp(-1.5, 1.5).cumprod(-1)",
        "polygamma": "torch.polygamma(1, ({}).abs() + 1)", "xlogy": "torch.xlogy(({}).abs(), ({}).abs() + 0.5)", "remainder": "torch.remainder({}, 0.77)", "fmod": "torch.fmod({}, 0.77)", "ldexp": "torch.ldexp({}, torch.tensor(2))",
        "tensor_scalar": "{} * torch.tensor(0.7)", "to": "({}).to(torch.float64, copy=True)", "type_as": "({}).type_as({})", "vander": "torch.vander(({}).detach().flatten()[:4], N=3)", "float_power": "torch.float_power({}, 2)"}


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
