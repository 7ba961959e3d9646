"""Makes a training program from a seed."""

import random

import torch
from fuzz_compare import Reference
from context import Context
from kinds import LATER, WEIGHTS
from notes import Notes
from precision import AUTOCAST, FLOAT32, FLOAT64, Apart
from program import Statement, indented

# In this order, see kinds.py.
import operators  # noqa: F401, E402, I001
import shapes  # noqa: F401, E402
import writes  # noqa: F401, E402
import surroundings  # noqa: F401, E402
import algebra  # noqa: F401, E402
import wild  # noqa: F401, E402
import whole  # noqa: F401, E402
import empty  # noqa: F401, E402
import seldom  # noqa: F401, E402
import evaluation  # noqa: F401, E402

LOSSES = {"mean": "{h}.mean()", "square": "{h}.pow(2).mean()", "sum": "{h}.sum() * 0.1", "mse": "F.mse_loss({h}, torch.randn({s}))", "l1": "F.l1_loss({h}, torch.randn({s}))", "smooth_l1": "F.smooth_l1_loss({h}, torch.zeros_like({h}))",
          "huber": "F.huber_loss({h}, torch.ones_like({h}), reduction='sum')", "bce": "F.binary_cross_entropy_with_logits({h}, torch.rand({s}))", "variance": "(1 - (({h}.flatten(1).var(0) + 1e-2).sqrt())).relu().mean() + {h}.square().mean()",
          "logsumexp": "{h}.flatten().logsumexp(0)", "tanh_mean": "{h}.tanh().mean(0).sum()", "max_rows": "{h}.flatten(1).max(0).values.mean()", "item_scaled": "{h}.square().mean() / {h}.detach().square().mean().add(0.1)", "none_mean": "F.mse_loss({h}, torch.randn({s}), reduction='none').mean()",
          "weighted": "({h} * torch.rand({h}.shape[:1]).view(-1, {ones})).sum() / {h}.shape[0]", "masked": "({h} * (torch.rand({s}) > 0.4)).sum() / 7", "poisson": "F.poisson_nll_loss({h}.clamp(max=2), torch.rand({s}))", "gaussian": "F.gaussian_nll_loss({h}, torch.randn({s}), {h}.square() + 0.5)",
          "kl": "F.kl_div({h}.log_softmax(-1), torch.rand({s}).softmax(-1), reduction='batchmean')", "normalized": "F.normalize({h}.flatten(1), dim=1).square().sum() * 0.1 + {h}.mean()", "norm": "({h} + 0.01).norm()", "hinge": "(1 - {h}).clamp(min=0).mean()", "entropy": "-({h}.softmax(-1) * {h}.log_softmax(-1)).sum(-1).mean()"}
CLASSIFY = {"cross_entropy": "F.cross_entropy({h}, torch.randint({f}, ({b},)))", "smoothing": "F.cross_entropy({h}, torch.randint({f}, ({b},)), label_smoothing=0.1)", "ignored": "F.cross_entropy({h}, torch.randint({f}, ({b},)), ignore_index=0)",
            "class_weights": "F.cross_entropy({h}, torch.randint({f}, ({b},)), weight=torch.linspace(0.5, 1.5, {f}))", "sum": "F.cross_entropy({h}, torch.randint({f}, ({b},)), reduction='sum')", "nll": "F.nll_loss({h}.log_softmax(1), torch.randint({f}, ({b},)))",
            "rows": "F.cross_entropy({h}, torch.randint({f}, ({b},)), reduction='none').mean()", "probabilities": "F.cross_entropy({h}, torch.rand({b}, {f}).softmax(1))", "contrast": "F.cross_entropy(F.normalize({h}, dim=1) @ F.normalize({h}, dim=1).T * 3, torch.arange({b}))",
            "multi_margin": "F.multi_margin_loss({h}, torch.randint({f}, ({b},)))", "triplet": "F.triplet_margin_loss({h}, {h}.roll(1, 0), {h}.flip(0))", "focal": "((1 - {h}.softmax(1)[torch.arange({b}), 0]) ** 2 * F.cross_entropy({h}, torch.zeros({b}, dtype=torch.long), reduction='none')).mean()",
            "accuracy": "F.cross_entropy({h}, torch.randint({f}, ({b},)))\nnote.value('accuracy', ({h}.argmax(1) == 0).double().mean().item())", "multilabel": "F.multilabel_soft_margin_loss({h}, (torch.rand({b}, {f}) > 0.5).double())", "kl_teacher": "F.kl_div({h}.log_softmax(1), {h}.detach().flip(0).softmax(1), reduction='batchmean')",
            "cosine": "F.cosine_embedding_loss({h}, {h}.detach().roll(1, 0), torch.ones({b}))", "ranking": "F.margin_ranking_loss({h}[:, 0], {h}[:, -1], torch.ones({b}))", "supervised_contrast": "-(({h} @ {h}.T).log_softmax(1) * (torch.arange({b}) % 2 == 0)).sum() / {b}"}

OPTIMIZERS = ("torch.optim.SGD(trained, lr=0.05)", "torch.optim.SGD(trained, lr=0.05, momentum=0.9)", "torch.optim.SGD(trained, lr=0.05, weight_decay=0.01, nesterov=True, momentum=0.8)", "torch.optim.Adam(trained, lr=0.01, eps=1e-3)",
              "torch.optim.AdamW(trained, lr=0.01, eps=1e-3)", "torch.optim.RMSprop(trained, lr=0.01, eps=1e-2)", "torch.optim.SGD(trained, lr=0.05, foreach=True)")

# More of them, and those that are given the step as a function.
MORE = ("torch.optim.Adagrad(trained, lr=0.05, eps=1e-3)", "torch.optim.Adadelta(trained, eps=1e-2)", "torch.optim.Adamax(trained, lr=0.01, eps=1e-3)", "torch.optim.NAdam(trained, lr=0.01, eps=1e-3)", "torch.optim.RAdam(trained, lr=0.01, eps=1e-3)", "torch.optim.ASGD(trained, lr=0.05)",
        "torch.optim.Rprop(trained, lr=0.01)", "torch.optim.RMSprop(trained, lr=0.01, eps=1e-2, momentum=0.5, centered=True)", "torch.optim.Adam(trained, lr=0.01, eps=1e-3, amsgrad=True, weight_decay=0.1)", "torch.optim.SGD(trained, lr=0.05, momentum=0.9, dampening=0.1, maximize=True)",
        "torch.optim.SGD([{'params': trained[:1], 'lr': 0.1}, {'params': trained[1:], 'momentum': 0.5}], lr=0.05)")
FORMS = ("foreach=True", "foreach=False", "fused=True")
CLOSURES = ("torch.optim.LBFGS(trained, lr=0.1, max_iter=3, history_size=4)", "torch.optim.LBFGS(trained, lr=0.1, max_iter=4, line_search_fn='strong_wolfe')", *OPTIMIZERS[:2], *OPTIMIZERS[3:5])

# Steps without an operator that couples or breaks anything: these come first and often, so that most programs split.
FIRST = ("module", "product", "recurrent", "attention")


def inputs(c):
    """The batches of a step."""
    rows = c.any((1, 2, 3, 4, 5, 6, 8, 8, 8, 10, 12, 12, 16, 24))
    c.ragged = c.one_in(6)
    c.rows = 13 if c.ragged else min(rows, c.program.precision.most_rows)
    if c.ragged:
        other = c.any((1, 2, 5, 7))
        if c.modes.randrange(4) == 0:
            other = 0  # rows
            c.no_rows = True
        c.add(f"b0 = 13 if step {'< 1' if other or c.modes.randrange(2) else '!= 1'} else {other}", ("b0",))
        c.namespace["b0"] = 13
    b = c.size(c.rows)
    for _ in range(c.any((1, 1, 1, 2, 3))):
        t, f = c.any((2, 3, 4, 5)), c.any((2, 3, 4, 6, 6, 8) if c.ragged else (2, 3, 4, 6, 6, 8, c.rows))
        sizes = c.any((f"{b}, {f}", f"{b}, {f}", f"{b}, {f}", f"{b}, {t}, {f}", f"{b}, {t}, {f}", f"{t}, {b}, {f}", f"{b}, {c.any((1, 2, 3, 4))}, 4, {c.any((4, 6))}", f"{b}"))
        kind = c.random.randrange(10)
        name = c.new("x")
        if kind == 0:
            c.add(f"{name} = torch.randint(7, ({sizes if sizes.count(',') < 2 else f'{b}, {t}'},))", (name,), ("tokens",))
        elif kind == 1 and not c.ragged:
            data = c.setup("d", f"torch.randn(3, {sizes})")
            if data:
                c.add(f"{name} = note.data({data}[step].clone())", (name,), ("dataset",))
        elif kind == 2:
            c.add(f"{name} = note.data(torch.randn({sizes})).requires_grad_()", (name,), ("input_gradient",))
        else:
            c.add(f"{name} = note.data(torch.randn({sizes}))", (name,), ("input",))
        if name in c.floats and c.modes.randrange(4) == 0:
            put_together(c, name)
    if not c.floats:
        name = c.new("x")
        c.add(f"{name} = note.data(torch.randn({b}, 4))", (name,), ("input",))


def put_together(c, x):
    """Another batch, in a tensor that is written to slice by slice, or that an operator reads before rows of it are replaced."""
    sizes = c.sizes(x)
    if len(sizes) < 2 or sizes[0] < 2 or sizes[-1] < 2:
        return
    name, read = c.new("x"), c.new("x")
    width, height = c.modes.randrange(1, sizes[-1]), c.modes.randrange(1, sizes[0])
    fresh = c.modes.choice((f"torch.zeros_like({x})", f"torch.empty_like({x}, requires_grad=False)", f"{x}.detach().clone()", f"torch.zeros({c.list_of(sizes)})"))
    by_columns = f"{name} = {fresh}\n{name}[..., :{width}] = {x}[..., -{width}:] * 2\n{name}[..., {width}:] = {x}[..., :{sizes[-1] - width}]"
    by_rows = f"{name} = {fresh}\n{name}[:{height}] = {x}[:{height}] * 0.5\n{name}[{height}:] = {x}[{height}:].flip(0)"
    replaced = f"{name} = {x}.detach().clone()\n{read} = {name}.{c.modes.choice(('mean(0)', 'flip(0)[0]', 'sort(0)[0][-1]'))}\n{name}[:{height}] -= {read}\n{name}[{height}:].mul_(0.3)"
    c.add(c.modes.choice((by_columns, by_columns, by_rows, replaced)), (name,), ("put_together",))


def body(c):
    kinds, weights = zip(*WEIGHTS.items())
    named = {function.__name__: function for function in kinds}
    for _ in range(c.any((0, 1, 1, 2))):
        named[c.any(FIRST)](c)
    for _ in range(c.random.randrange(1, 13)):
        for _ in range(4):
            if c.random.choices(kinds, weights)[0](c):
                break
    later(c)


def later(c):
    """In one program of three: see LATER."""
    others, c.random = c.random, random.Random(f"later {c.program.seed}")
    if c.one_in(3):
        kinds, weights = zip(*LATER.items())
        for _ in range(c.any((1, 1, 2))):
            c.random.choices(kinds, weights)[0](c)
    c.random = others


def loss(c):
    """The name of a scalar that has a gradient, or None."""
    fit = [name for name in c.floats if c.tensor(name).requires_grad and name[0] == "h"]
    if not fit:
        return None
    h = c.any(fit[-3:])
    sizes = c.sizes(h)
    name = c.new("l")
    table = CLASSIFY if len(sizes) == 2 and c.one_in(2) else LOSSES
    key = c.any(table)
    if key == "multi_margin" and c.no_rows:
        key = "cross_entropy"  # of no rows the former is what happens to lie in memory, in plain PyTorch as well
    text = table[key].format(h=h, s=c.list_of(sizes) or "()", b=c.size(sizes[0]) if sizes else 1, f=c.size(sizes[-1]) if sizes else 1, ones=", ".join("1" for _ in sizes[1:]))
    text = text.replace("view(-1, )", "view(-1)")
    if not c.add(f"{name} = {text}", (name,), (f"loss_{key}",)):
        return None
    return name if c.tensor(name).dim() == 0 and c.tensor(name).requires_grad else None


def backward(c, losses):
    """What a step does with its losses."""
    def put(text, *operators):
        c.program.step.append(Statement(text, (), operators))

    noted = "; ".join(f"note.value('loss', {name}{c.any(('', '.item()', '.detach()'))})" for name in losses)
    if c.one_in(2):
        put(noted, "read_loss")
    total = " + ".join(losses)
    choice = c.random.randrange(12)
    zero = c.any(("o0.zero_grad()", "o0.zero_grad(set_to_none=False)", "net.zero_grad()\nfor p in trained: p.grad = None"))
    every = c.one_in(8)
    if not every:
        put(zero, "zero_grad")
    if choice <= 5 or len(losses) == 1 and choice <= 7:
        put(f"({total}).backward()", "backward")
    elif choice == 6:
        put("\n".join(f"{name}.backward(retain_graph={name != losses[-1]})" for name in losses), "retain_graph")
    elif choice == 7:
        put(f"torch.autograd.backward([{', '.join(losses)}])", "backward_of_list")
    elif choice == 8:
        put(f"for p, g in zip(trained, torch.autograd.grad({total}, trained, allow_unused=True)):\n    p.grad = g", "grad")
    elif choice == 9:
        put(f"({total}).backward(torch.tensor(2.0))", "backward_with_gradient")
    elif choice == 10:
        put(f"({total}).backward(retain_graph=True)\n({losses[0]} * 0.5).backward()", "backward_twice")
    else:
        put(f"(({total}) / 2).backward()", "backward_of_half")
    if c.one_in(3):
        put(noted, "read_loss")
    if c.one_in(5):
        put(c.any(("note.value('norm', nn.utils.clip_grad_norm_(trained, 0.5).item())", "nn.utils.clip_grad_value_(trained, 0.1)", "for p in trained:\n    if p.grad is not None: p.grad.mul_(0.5)")), "clip")
    put("o0.step()" if not every else "if step % 2 == 1:\n    o0.step()\n    o0.zero_grad()", "optimizer")
    if c.one_in(6):
        kept = [name for name in c.floats if name[0] == "h"]
        if kept:
            put(f"note.value('after', {c.any(kept)}.detach().sum().item())", "read_after")
    modules = [name for name, key in c.modules.items() if key[0] in ("linear", "square", "mlp", "bn1", "bnmlp", "layer_norm")]
    if c.one_in(5) and modules:
        m = c.any(modules)
        width = c.modules[m][1] if len(c.modules[m]) > 1 else 4
        put(f"net.eval()\nwith torch.{c.any(('no_grad', 'inference_mode'))}():\n    note.value('evaluated', {m}(torch.ones(5, {width})))\nnet.train()", "evaluation")


def optimizer(c, chosen):
    way = c.modes.randrange(12)
    if way < 2:
        chosen = c.modes.choice(MORE)
    elif way == 2 and c.program.step[-1].text == "o0.step()":
        c.program.closure, chosen = True, c.modes.choice(CLOSURES)
    if c.modes.randrange(4) == 0 and "LBFGS" not in chosen and "foreach" not in chosen:
        form = c.modes.choice(FORMS)
        if "fused" not in form or chosen.split("(")[0].split(".")[-1] in ("SGD", "Adam", "AdamW", "Adagrad"):
            chosen = f"{chosen[:-1]}, {form})"
    return chosen


HOOKS = ("{h}.register_hook(lambda gradient: note.value('hook', gradient))", "{h}.register_hook(lambda gradient: gradient * 0.5)", "{h}.register_hook(lambda gradient: gradient / (1 + gradient.norm()))",
         "note.retain('retained', {h})", "note.retain('retained', {h})\n{h}.register_hook(lambda gradient: gradient * 1.5)", "{h}.register_hook(lambda gradient: gradient * 9).remove()\n{h}.register_hook(lambda gradient: note.value('hook', gradient.sum()))")


def hook(c):
    """Hooks on tensors inside the step, most of them right behind what makes the tensor. They are drawn from random numbers of their own, so that programs stay as they were but for them."""
    random_here = random.Random(f"hooks {c.program.seed}")
    if random_here.randrange(5):
        return
    step = c.program.step
    end = next((i for i, s in enumerate(step) if ".backward(" in s.text or "autograd." in s.text), len(step))
    for _ in range(random_here.choice((1, 1, 2, 3))):
        made = [(i, name) for i, s in enumerate(step[:end]) for name in s.defines if name[0] == "h"]
        if not made:
            return
        i, name = random_here.choice(made)
        text = random_here.choice(HOOKS).format(h=name)
        at = i + 1 if random_here.randrange(4) else random_here.randrange(i + 1, end + 1)
        step.insert(at, Statement("\n".join([f"if {name}.requires_grad:", *indented(text, 4)]), (), ("hook",)))
        end += 1


def make(seed):
    """A program, or None where nothing came of the seed."""
    c = Context(seed)
    c.compute_in(c.modes.choice((FLOAT64,) * 6 + (FLOAT32, AUTOCAST)))
    c.empty = c.modes.randrange(24) == 0
    inputs(c)
    body(c)
    losses = [name for name in (loss(c) for _ in range(c.any((1, 1, 1, 2, 3)))) if name]
    if not losses and len([n for n in c.floats if len(c.sizes(n)) >= 1]):
        named = {function.__name__: function for function in WEIGHTS}
        named["product"](c)
        losses = [name for name in (loss(c),) if name]
    if not losses or not (c.program.names("m") or c.program.names("w")):
        return None
    where, usual = len(c.program.setup), c.any(OPTIMIZERS)
    backward(c, losses)
    chosen = optimizer(c, usual)
    c.program.setup.insert(where, Statement(f"o0 = {chosen}", ("o0",), (chosen.split("(")[0].split(".")[-1] + (" with a closure" if c.program.closure else ""),), "setup"))
    c.program.steps = c.any((2, 2, 3))
    hook(c)
    return c.program


def outcome(function, notes):
    """Runs a program: what it ended with, "ok" or an exception."""
    try:
        function(notes)
    except Exception as error:  # noqa: BLE001
        return error
    finally:
        torch.set_grad_enabled(True)
    return "ok"


def plain_values(program):
    """What a plain run of the program leaves, or a text that says why it is of no use."""
    function, precision = program.compiled(), program.precision
    notes = Notes()
    ended = outcome(function, notes)
    if ended != "ok":
        return f"plain: {type(ended).__name__}: {str(ended)[:200]}"
    reference = Reference(notes.values, precision)
    for draw in range(draws(program)):
        noisy = Notes(noise=precision.noise, draw=draw)
        with Apart(noisy.disturbed):
            ended = outcome(function, noisy)
        if ended != "ok":
            return "fails under noise"
        worst = reference.differences(noisy.values)
        if worst and worst[0][0] > precision.most_amplified:
            return f"ill-conditioned: {worst[0]}"
    return notes.values


def draws(program):
    """Rprop makes a step of the sign of a gradient: of one that is rounding (a bias before a batch norm) the sign is luck, and so may be that noise does not change it."""
    by_sign = any("Rprop" in name for statement in getattr(program, "setup", ()) for name in statement.operators)
    return max(program.precision.draws, 5 if by_sign else 1)


def generate(seed):
    """(program, values), or (None, why)."""
    program = make(seed)
    if program is None:
        return None, "nothing to train"
    values = plain_values(program)
    if isinstance(values, str):
        return None, values
    return program, values


if __name__ == "__main__":
    import collections
    import sys
    import time
    import warnings
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begin, end = int(sys.argv[1]), int(sys.argv[2])
    why, made_as = {}, collections.Counter()
    start, made = time.time(), 0
    for seed in range(begin, end):
        program, values = generate(seed)
        made += program is not None
        if program is None:
            why.setdefault(values.split(":")[0] + ":" + values[6:60] if values.startswith("plain") else values.split(":")[0], []).append(seed)
        else:
            made_as[program.precision.name, program.closure] += 1
        if program and end - begin <= 2:
            print(program.source())
    print(made, "of", end - begin, "in", time.time() - start, "s", dict(made_as))
    for text, seeds in sorted(why.items(), key=lambda pair: -len(pair[1]))[:25]:
        print(len(seeds), text, seeds[:3])
