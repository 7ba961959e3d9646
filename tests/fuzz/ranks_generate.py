"""Makes a program for two ranks from a seed: collective operations around a module, and DistributedDataParallel in its many ways."""

import random

from precision import FLOAT64

IMPORTS = """import contextlib
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from functions import Branches, averaged, halved
"""

# Of h, a tensor of the batch; some have a gradient when h has.
BETWEEN = {"all_reduce": "h = h * 1.1\ndist.all_reduce(h)", "all_reduce_max": "m = h.detach().amax(0)\ndist.all_reduce(m, op=dist.ReduceOp.MAX)\nh = h / (m.abs() + 1)", "asynchronous": "g = h.detach() * 0.5\nwork = dist.all_reduce(g, async_op=True)\nh = h.tanh()\nwork.wait()\nh = h + g * 0.3",
           "all_gather": "g = [torch.empty_like(h) for _ in range(2)]\ndist.all_gather(g, h.detach().contiguous())\ng[dist.get_rank()] = h\nh = h + torch.cat(g).mean(0) * 0.2", "all_gather_into_tensor": "g = torch.empty(2 * h.shape[0], h.shape[1])\ndist.all_gather_into_tensor(g, h.detach().contiguous())\nh = h - g.mean(0)",
           "broadcast": "g = h.detach().mean(0)\ndist.broadcast(g, src=1)\nh = h - g", "reduce_scatter": "g = torch.empty(1, h.shape[1])\ndist.reduce_scatter_tensor(g, torch.stack([h.detach().mean(0), h.detach().amax(0)]))\nh = h + g * 0.1", "functional_all_reduce": "h = h + functional.all_reduce(h.detach() * 0.2, 'sum', dist.group.WORLD)",
           "functional_mean": "h = h - functional.all_reduce(h.detach().mean(0), 'sum', dist.group.WORLD) / 2", "functional_gather": "g = functional.all_gather_tensor(h.detach(), 0, dist.group.WORLD)\nh = h * 0.9 + g.std(0) * 0.1", "gather_with_gradient": "g = torch.distributed.nn.functional.all_gather(h.contiguous())\nh = h + torch.cat(list(g)).mean(0) * 0.3",
           "all_reduce_with_gradient": "h = h + torch.distributed.nn.functional.all_reduce(h.mean(0)) * 0.2", "all_to_all": "g = torch.empty(2, h.shape[1])\ndist.all_to_all_single(g, torch.stack([h.detach().mean(0), h.detach().amin(0)]))\nh = h + g.sum(0) * 0.1", "send": "g = torch.empty(h.shape[1])\n"
           "if dist.get_rank() == 0:\n    dist.send(h.detach().mean(0), 1)\n    dist.recv(g, 1)\nelse:\n    dist.recv(g, 0)\n    dist.send(h.detach().mean(0), 0)\nh = h * 0.8 + g * 0.2", "read": "g = h.detach().square().mean()\ndist.all_reduce(g)\nnote.value('reduced', g.item())", "barrier": "dist.barrier()",
           "object": "found = [None, None]\ndist.all_gather_object(found, float(h.detach().sum()))\nnote.value('objects', found)", "centre": "with torch.no_grad():\n    g = h.mean(0)\n    dist.all_reduce(g)\n    centre.mul_(0.9).add_(g, alpha=0.05)\nh = h - centre", "statistics": "g = torch.stack([h.sum(0), h.square().sum(0)])\nwith torch.no_grad():\n    dist.all_reduce(g)\nh = (h - g[0].detach() / 16) * 0.7"}
HOOKS = ("", "", "", "averaged", "halved", "ready")
PLAIN = ("h = torch.tanh(h)", "h = h + h.sin()", "h = F.gelu(h)", "h = h * torch.rand(h.shape)", "h = h - h.mean(-1, keepdim=True)", "h = h.softmax(-1) + h", "h = F.layer_norm(h, h.shape[-1:])", "h = (h @ w0).tanh()")
LOSSES = ("F.cross_entropy(h, y)", "F.mse_loss(h, torch.randn(h.shape))", "h.square().mean() + F.cross_entropy(h, y)", "F.cross_entropy(h, y, reduction='sum') / 8")
AFTER = ("g = {l}.detach().clone()\ndist.all_reduce(g)\nnote.value('loss', g.item() / 2)", "note.value('loss', {l}.item())", "dist.barrier()", "note.value('loss', functional.all_reduce({l}.detach(), 'sum', dist.group.WORLD).item())", "g = h.detach().clone()\ndist.all_reduce(g)\nnote.value('outputs', g.sum().item())")
OPTIMIZERS = ("SGD(trained, lr=0.05)", "SGD(trained, lr=0.05, momentum=0.9)", "Adam(trained, lr=0.01, eps=1e-3)", "AdamW(trained, lr=0.01, eps=1e-3, foreach=True)")


class RankProgram:
    """Its text is the same for both ranks."""

    precision = FLOAT64

    def __init__(self, seed):
        self.seed, self.steps = seed, 3
        self.operators = set()
        self.text = self._text(random.Random(seed))

    def _between(self, choices):
        name = choices.choice(list(BETWEEN))
        self.operators.add(name)
        return BETWEEN[name]

    def _text(self, choices):
        def one_in(n):
            return choices.randrange(n) == 0

        rows, width = choices.choice((2, 4, 8, 8, 12, 24)), choices.choice((4, 6))
        norm = f"nn.BatchNorm1d({width})" if one_in(3) else f"nn.{choices.choice(('Linear(%d, %d)' % (width, width), 'Identity()', 'LayerNorm(%d)' % width))}"
        options = {"find_unused_parameters": one_in(3), "static_graph": one_in(4), "gradient_as_bucket_view": one_in(2), "broadcast_buffers": one_in(2)}
        if options["static_graph"]:
            options["find_unused_parameters"] = False
        given = ", ".join(f"{name}={value}" for name, value in options.items()) + (", bucket_cap_mb=0.0001" if one_in(2) else "")
        wrapped = not one_in(4)
        lines = ["def program(note):", f"    torch.manual_seed({self.seed})", "    torch.set_default_dtype(torch.float64)",
                 f"    net = Branches(nn.Sequential(nn.Linear({width}, {width}), {norm}, nn.{choices.choice(('ReLU()', 'Tanh()', 'ReLU(inplace=True)'))}), nn.Linear({width}, 5), nn.Linear({width}, 5))",
                 f"    w0, centre = nn.Parameter(torch.randn({width}, {width}) * 0.5), torch.zeros({width})"]
        self.operators |= {name for name, value in options.items() if value and wrapped}
        if wrapped:
            lines.append(f"    ddp = DistributedDataParallel(net, {given})")
            hook = "" if options["static_graph"] and one_in(2) else choices.choice(HOOKS)
            if hook in ("averaged", "halved"):
                lines.append(f"    ddp.register_comm_hook(None, {hook})")
            elif hook:
                lines.append("    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)")
            self.operators.add(f"hook {hook}" if hook else "no hook")
        else:
            lines.append("    ddp = net")
        lines += ["    torch.manual_seed(dist.get_rank() + 1)", "    trained = note.trained([*net.parameters(), w0])", f"    o0 = torch.optim.{choices.choice(OPTIMIZERS)}", f"    for step in note.steps({self.steps}):"]
        other = wrapped and options["find_unused_parameters"]
        times = 2 if one_in(3) else 1
        body = ["o0.zero_grad()"]
        for i in range(times):
            body += self._pass(choices, rows, width, other, quiet=wrapped and i < times - 1 and one_in(2))
        if one_in(4):
            body.append("note.value('norm', nn.utils.clip_grad_norm_(trained, 0.5).item())")
        if not wrapped or one_in(2):
            body.append("for p in trained:\n    if p.grad is not None: dist.all_reduce(p.grad)" if not wrapped else "if w0.grad is not None: dist.all_reduce(w0.grad)")
        body.append("o0.step()")
        lines += [" " * 8 + line for part in body for line in part.split("\n")]
        lines.append("        note.state(net, trained, {'centre': centre})")
        return "\n".join(lines) + "\n"

    def _pass(self, choices, rows, width, other, quiet):
        def one_in(n):
            return choices.randrange(n) == 0

        body = [f"h, y = note.data(torch.randn({rows}, {width})), torch.randint(5, ({rows},))"]
        for _ in range(choices.randrange(3)):
            body.append(self._between(choices) if one_in(2) else choices.choice(PLAIN))
        within = [f"h = ddp(h, {'(step + dist.get_rank()) % 2 if step else 0' if other else None})"]
        if one_in(3):
            within.append(choices.choice(("h = h * 1.5", "g = h.detach().mean(0)\ndist.all_reduce(g)\nh = h - g * 0.5", "h = h + torch.distributed.nn.functional.all_reduce(h.mean(0)) * 0.1", "h = torch.tanh(h)")))
        within.append(f"l = {choices.choice(LOSSES)}")
        if one_in(2):
            within.append(choices.choice(AFTER).format(l="l"))
        within.append("l.backward()")
        if one_in(3):
            within.append(choices.choice(AFTER).format(l="l"))
        if not quiet:
            return body + within
        self.operators.add("no_sync")
        return body + ["with ddp.no_sync():", *("    " + line for part in within for line in part.split("\n"))]

    def source(self):
        return self.text

    def compiled(self):
        namespace = {}
        exec(compile(IMPORTS + self.text, f"<program {self.seed}>", "exec"), namespace)
        return namespace["program"]
