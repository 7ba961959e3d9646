"""Training steps under saved-tensor hooks (checkpoints of every kind, save_on_cpu, hooks of the program's own), each of whose allocations fails in turn,
each time in a child of its own. test_checkpoints.py runs it, as `python checkpoint_steps.py OUT SCENARIO,... SPEC,...`, once for each ladder. A spec is
one of KOILA_INJECT_OOM, or `eachN`: every Nth allocation of the first step.
"""

import functools
import os
import pickle
import sys
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401  (the first optimizer of a process imports it, which takes a second)
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

ROWS, WIDTH = 12, 16


class Block(torch.nn.Module):
    """A transformer's block without its attention's dropout; what it computes has several saved tensors an operator."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + torch.softmax(q @ k.transpose(1, 2), -1) @ v
        return x + self.down(F.gelu(self.up(x)) * 1.5)


class Net(torch.nn.Module):
    def __init__(self, wrap, blocks=2):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, WIDTH), torch.nn.Linear(WIDTH, 3)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.wrap = wrap

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = self.wrap(block, x)
        return self.last(x).mean(1)


SCENARIOS = {}


def scenario(make):
    """A function that makes a model and its loss."""
    SCENARIOS[make.__name__] = make
    return make


def of_blocks(wrap, **more):
    net = Net(wrap, **more).double()
    x, y = torch.randn(ROWS, 5, 4, dtype=torch.double), torch.randint(3, (ROWS,))
    return net, lambda: F.cross_entropy(net(x), y)


def checkpointed(**options):
    return lambda block, x: checkpoint(block, x, **options)


@scenario
def no_reentrant():
    return of_blocks(checkpointed(use_reentrant=False))


@scenario
def reentrant():
    return of_blocks(checkpointed(use_reentrant=True))


@scenario
def to_its_end():
    return of_blocks(checkpointed(use_reentrant=False, early_stop=False))


@scenario
def unchecked():
    return of_blocks(checkpointed(use_reentrant=False, determinism_check="none"))


@scenario
def nested():
    inner = checkpointed(use_reentrant=False)
    return of_blocks(lambda block, x: checkpoint(lambda x: inner(block, x.sin()).cos(), x, use_reentrant=False))


@scenario
def weight_within():
    """A weight that the checkpoint makes of parameters alone: what it saves is no part of what is split, and its second run comes by all the same."""
    class Normed(Block):
        def forward(self, x):
            weight = self.up.weight * 2 / (1 + self.up.weight.norm(dim=1, keepdim=True))
            return x + self.down(torch.tanh(F.linear(self.norm(x), weight, self.up.bias)))

    net, loss = of_blocks(checkpointed(use_reentrant=False))
    net.blocks = torch.nn.ModuleList(Normed() for _ in range(2)).double()
    return net, loss


@scenario
def around_all():
    net = Net(lambda block, x: block(x)).double()
    x, y = torch.randn(ROWS, 5, 4, dtype=torch.double), torch.randint(3, (ROWS,))
    return net, lambda: checkpoint(lambda x: F.cross_entropy(net(x), y), x, use_reentrant=False)


@scenario
def selective():
    saved = [torch.ops.aten.addmm.default, torch.ops.aten.bmm.default, torch.ops.aten.gelu.default]
    context = functools.partial(create_selective_checkpoint_contexts, saved)
    return of_blocks(checkpointed(use_reentrant=False, context_fn=context))


@scenario
def selective_by_count():
    """Every second operator of a kind: what a failed try has counted shows."""
    def context():
        counts = {}

        def policy(_, op, *args, **kwargs):
            counts[op] = counts.get(op, 0) + 1
            return CheckpointPolicy.MUST_SAVE if counts[op] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return create_selective_checkpoint_contexts(policy)
    return of_blocks(checkpointed(use_reentrant=False, context_fn=context))


@scenario
def sequential():
    net, loss = of_blocks(lambda block, x: x, blocks=3)
    x, y = torch.randn(ROWS, 5, 4, dtype=torch.double), torch.randint(3, (ROWS,))
    return net, lambda: F.cross_entropy(net.last(checkpoint_sequential(torch.nn.Sequential(*net.blocks), 2, net.first(x), use_reentrant=False)).mean(1), y)


@scenario
def sequential_reentrant():
    net, loss = of_blocks(lambda block, x: x, blocks=3)
    x, y = torch.randn(ROWS, 5, 4, dtype=torch.double), torch.randint(3, (ROWS,))
    return net, lambda: F.cross_entropy(net.last(checkpoint_sequential(torch.nn.Sequential(*net.blocks), 2, net.first(x), use_reentrant=True)).mean(1), y)


@scenario
def saved_on_cpu():
    net, loss = of_blocks(lambda block, x: block(x))

    def go():
        with torch.autograd.graph.save_on_cpu():
            return loss()
    return net, go


@scenario
def saved_on_cpu_within():
    def wrap(block, x):
        with torch.autograd.graph.save_on_cpu():
            return checkpoint(block, x, use_reentrant=False)
    return of_blocks(wrap)


@scenario
def own_hooks():
    """A program that counts what is saved, in order, and gives it back by number."""
    kept = {}

    def pack(t):
        kept[len(kept)] = t.clone()
        return len(kept) - 1

    def wrap(block, x):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda number: kept[number]):
            return block(x)
    net, loss = of_blocks(wrap)

    def go():
        kept.clear()
        value = loss()
        net.seen = [torch.tensor(len(kept)), *kept.values()]
        return value
    return net, go


@scenario
def failing_hooks():
    """Hooks that ask for memory themselves, and whose results backward changes."""
    def wrap(block, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (t.float(), t.dtype), lambda packed: packed[0].to(packed[1])):
            return block(x)
    return of_blocks(wrap)


@scenario
def dropped():
    """Draws inside a checkpoint, which its second run repeats."""
    return of_blocks(lambda block, x: checkpoint(lambda x: F.dropout(block(x), 0.3), x, use_reentrant=False))


def gpt2(use_reentrant):
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=WIDTH, n_positions=8, vocab_size=19, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).double()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.train()
    ids = torch.randint(19, (ROWS, 6))
    return model, lambda: model(input_ids=ids, labels=ids).loss


@scenario
def gpt2_reentrant():
    return gpt2(True)


@scenario
def gpt2_no_reentrant():
    return gpt2(False)


def copied(t):
    if t is None:
        return None
    try:
        return t.detach().numpy().copy()
    except RuntimeError as error:
        return f"not to be read: {error}"


def in_a_child(work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with open(write, "wb") as file:
            pickle.dump(work(), file)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"crash": status} if status else pickle.loads(text)


def run_here(name, koila, inject):
    torch.manual_seed(0)
    net, loss_of = SCENARIOS[name]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = {"error": None, "losses": [], "gradients": []}
    before = koila.allocations()
    koila.limit(0, inject)
    try:
        for _ in range(2):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            found["losses"].append(loss.item())
            found["gradients"].append([copied(p.grad) for p in net.parameters()] + [copied(t) for t in getattr(net, "seen", [])])
            optimizer.step()
            found.setdefault("allocations", koila.allocations() - before)  # of the first step
    except Exception as error:
        found["type"] = type(error).__name__
        found["error"] = str(error).split("\n")[0].split(";")[0]
    koila.limit(0)
    found["tensors"] = [copied(t) for p in net.parameters() for t in (p, p.grad)]
    found["generator"] = torch.get_rng_state().numpy().copy()
    report = koila.report()
    found["events"] = [(event["rung"], event["reason"]) for event in report["oom_events"] for _ in range(event["count"])]
    return found


def main(out, scenarios, specs):
    koila = Koila()
    found = {}
    if "gpt2" in scenarios:
        from real_models import torchvision_on_cpu
        torchvision_on_cpu()
        import transformers.models.gpt2.modeling_gpt2  # noqa: F401
    for name in scenarios.split(","):
        found[name, "whole"] = whole = in_a_child(lambda: run_here(name, koila, None))
        for spec in specs.split(","):
            if spec.startswith("each"):
                for number in range(1, whole["allocations"] + 1, int(spec[4:] or 1)):
                    found[name, f"nth:{number}"] = in_a_child(lambda: run_here(name, koila, f"nth:{number}"))
            elif spec:
                found[name, spec] = in_a_child(lambda: run_here(name, koila, spec))
    with open(out, "wb") as file:
        pickle.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
