"""Writes: in place, through views, by out=, and into state that outlives the step."""

from kinds import kind


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
