"""What a program does around its operators: it detaches, wraps, reads, draws, generates, hooks."""

from kinds import kind


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
    return c.let(f"torch.utils.checkpoint.checkpoint_sequential([nn.Tanh(), nn.Softsign()], 1, {h}, use_reentrant=False)", "checkpoint_sequential")


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
    return c.let_any(choices)


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
