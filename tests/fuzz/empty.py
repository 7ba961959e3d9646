"""What has no entries: slices, masks that pick nothing, indices of no row, and what is made of them."""

from kinds import kind


@kind(2, later=True)
def nothing(c):
    h = c.pick(lambda sizes: 1 <= len(sizes) <= 3)
    if h is None:
        return False
    d, f = c.dim(h), c.sizes(h)[-1]
    few = {"slice": f"{h}[:0]", "narrow": f"{h}.narrow({d}, 0, 0)", "mask": f"{h}[{h}.detach() > 9e9]", "mask_rows": f"{h}[torch.zeros({h}.shape[0], dtype=torch.bool)]", "index_select": f"{h}.index_select({d}, torch.empty(0, dtype=torch.long))", "columns": f"{h}[..., :0]",
           "masked_select": f"{h}.masked_select({h} != {h})", "split": f"{h}.split([0, {h}.shape[{d}]], {d})[0]", "nonzero": f"{h}[({h}.detach() > 9e9).nonzero(as_tuple=True)]", "index": f"{h}[[]]"}
    name = c.any(few)
    e = few[name]
    whole = {"cat": f"torch.cat([{h}, {e}], {d})", "cat_first": f"torch.cat([{e}, {h}], {d})", "sum": f"{h} + {e}.sum()", "tanh_sum": f"{h} * (1 + ({e} * 2).tanh().sum())", "rows_sum": f"{h} + {e}.sum(0)", "linear": f"{h} + F.linear({e}, {c.parameter(3, f)}).sum()",
             "norm": f"{h} - {e}.square().sum()", "new": f"{h} * 1.1 + {e}.new_zeros(())", "stack": f"torch.stack([{h}.sum(), {e}.sum()])", "softmax": f"{h} + {e}.softmax(-1).sum()", "loss": f"{h} + F.mse_loss({e}, {e}.detach() + 1, reduction='sum')", "numel": f"{h} * ({e}.numel() + 1)",
             "any": f"{h} * 2 if {e}.detach().sum() == 0 else {h}", "item": f"{h} + {e}.sum().item()"}
    return c.let_any(whole, f"empty_{name}_")


@kind(1, later=True)
def written_nowhere(c):
    """Writes that reach no entry."""
    h = c.pick(lambda sizes: 1 <= len(sizes) <= 3)
    if h is None:
        return False
    copy, f = c.new("h"), c.sizes(h)[-1]
    if not c.add(f"{copy} = {h} * 1.0", (copy,), ("copied",)):
        return False
    choices = {"mask": f"{copy}[{h}.detach() > 9e9] = 0.3", "slice": f"{copy}[:0] = 5", "slice_of_rows": f"{copy}[:0].copy_({h}[:0])", "index_put": f"{copy}[torch.empty(0, dtype=torch.long)] = {h}[:0]", "index_add": f"{copy}.index_add_(0, torch.empty(0, dtype=torch.long), {h}[:0])",
               "masked_fill": f"{copy}.masked_fill_({h}.detach() > 9e9, 0.2)", "index_fill": f"{copy}.index_fill_(0, torch.empty(0, dtype=torch.long), 0.1)", "view": f"{copy}[..., :0].mul_(0)", "index_copy": f"{copy}.index_copy_(0, torch.empty(0, dtype=torch.long), {h}[:0])"}
    name = c.any(choices)
    return c.add(choices[name], (), ("nowhere_" + name,)) and c.let(f"({copy} * 1.5).sin()", "read_again")
