"""What is no row by itself: sums over the rows, rows that are written to by their number, buffers that move while the step reads them, all rows at once."""

from kinds import kind


@kind(3, later=True)
def summed(c):
    """A sum over the rows goes on as any tensor does."""
    h = c.pick(lambda sizes: 2 <= len(sizes) <= 3)
    if h is None:
        return False
    f = c.sizes(h)[-1]
    r = c.new("h")
    if not c.add(f"{r} = {c.any((f'{h}.sum(0) * 0.2', f'{h}.mean(0)', f'{h}.mean(0, keepdim=True)', f'({h} * 0.3).sum(0)'))}", (r,), ("over_rows",)):
        return False
    other = c.pick(lambda sizes: sizes == c.sizes(r)) or r
    choices = {"linear": f"F.linear({r}, {c.parameter(3, f)}, {c.parameter(3)})", "module": f"{c.module(('linear', f), f'nn.Linear({f}, 3)')}({r})", "product": f"{r} * {other}", "matmul": f"{r} @ {other}.mT" if len(c.sizes(r)) > 1 else f"{r} @ {r}", "outer": f"{r}.unsqueeze(-1) * {other}.unsqueeze(-2)",
               "constant": f"{r} + {c.number()}", "rest": f"1 - {r}", "parameter": f"{r} - {c.parameter(f)}", "two": f"{r} + {h}.mean(0) * 0.5", "ratio": f"{r} / ({other}.abs() + 1)", "joined": f"torch.cat([{r}, {other} * 2], -1)", "root": f"({r}.square() + 0.1).sqrt()"}
    return c.let_any(choices, "sum_")


@kind(2, later=True)
def rows_written(c):
    """Writes to rows of a copy that is read again."""
    h = c.pick(lambda sizes: len(sizes) >= 1 and sizes[0] >= 2)
    if h is None:
        return False
    copy = c.new("h")
    if not c.add(f"{copy} = {h} * 1.0" if c.one_in(2) else f"{copy} = {h}.tanh()", (copy,), ("copied",)):
        return False
    rows = c.any(("[0]", "[1]", "[0, 1]", "[-1]"))
    choices = {"index_fill_": f"{copy}.index_fill_(0, torch.tensor({rows}), 0.3)", "index_fill": f"{copy} = {copy}.index_fill(0, torch.tensor({rows}), 0.3)", "index_put_": f"{copy}[torch.tensor({rows})] = 0.2",
               "view_of_row": f"{copy}[0].mul_(0.7)", "view_of_rest": f"{copy}[1:].add_(0.2)"}
    name = c.any(choices)
    if not c.add(choices[name], (copy,) if "=" in choices[name].split("[")[0] else (), ("rows_" + name,)):
        return False
    return c.let(f"({copy} * 1.5).sin()", "read_again")


@kind(2, later=True)
def moved(c):
    """A buffer that the step reads, and moves before the backward pass: a centre, a running sum, a threshold."""
    h = c.pick(lambda sizes: len(sizes) >= 1)
    if h is None:
        return False
    f = c.sizes(h)[-1]
    s = c.setup("s", f"torch.randn({f})")
    if s is None:
        return False
    read = {"plus": f"{h} + {s}", "minus": f"{h} * 0.7 - {s}", "fill": f"{h}.masked_fill({s} > 0.2, 0.1)", "alpha": f"torch.sub({h}, {s}, alpha=0.5)", "cut": f"({h} + {s}[:1]).tanh()", "twice": f"({h} + {s}).sin() + {s}"}
    if not c.let_any(read, "moved_"):
        return False
    row = f"{h}.detach().reshape(-1, {f}).mean(0)"
    write = c.any((f"{s}.mul_(0.9).add_({row}, alpha=0.1)", f"{s} += 0.2", f"{s}.copy_({row})", f"{s}.lerp_({row}, 0.3)", f"{s}[:1] -= 0.3", f"{s}.zero_()"))
    return c.add(f"with torch.no_grad():\n    {write}" if c.one_in(2) else write if row not in write else f"with torch.no_grad():\n    {write}", (), ("moved_write",))


@kind(2, later=True)
def against_all(c):
    """Each row against all rows of the same tensor, which is read both by the row and as a whole."""
    h = c.pick(lambda sizes: len(sizes) == 2 and sizes[0] >= 2)
    if h is None:
        return False
    return c.let_any({"distances": f"torch.cdist({h}, {h})", "products": f"torch.einsum('bi,ci->bc', {h}, {h}) * 0.3", "tensordot": f"torch.tensordot({h}, {h}, dims=([1], [1])) * 0.2", "linear": f"F.linear({h}, {h}) * 0.3"})


@kind(1, later=True)
def rows_of_a_parameter(c):
    """A parameter with a row for each of the batch, which is read as a whole as well: positions, a memory."""
    h = c.pick(lambda sizes: len(sizes) == 2 and sizes[0] >= 2)
    if h is None or c.ragged:
        return False
    w = c.parameter(*c.sizes(h))
    return c.let_any({"linear": f"{h} * {w} + F.linear({h}, {w}).mean(-1, keepdim=True)", "scores": f"({h} @ {w}.T).softmax(-1) @ {w} + {w} * 0.5", "shifted": f"F.linear({h} + {w}, {w})"})


@kind(1, later=True)
def put_together(c):
    """A tensor of zeros that is written to through a view, and read as a whole."""
    h = c.pick(lambda sizes: len(sizes) >= 2 and sizes[-1] >= 2)
    if h is None:
        return False
    made, view = c.new("h"), c.new("h")
    write = c.any((f"{view}.copy_({h}[..., 1:] * 1.5)", f"{view}.add_({h}[..., 1:])", f"{view}[:] = {h}[..., :-1].tanh()"))
    if not c.add(f"{made} = torch.zeros_like({h})\n{view} = {made}[..., 1:]\n{write}", (made, view), ("put_together",)):
        return False
    return c.let(f"({made} * 2).sin() + {h}", "read_as_a_whole")
