"""What a rank does: python jobs.py RANK FOLDER JOB... Each job's result is pickled to FOLDER/JOB.RANK.

A job is a function of the rank that returns {name: tensor}. All are in float64, so that no rounding hides a fault.
"""

import os
import pickle
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

ROWS, WIDTH, CLASSES, STEPS = 64, 16, 5, 3
JOBS = {}


def job(function):
    JOBS[function.__name__] = function
    return function


def mlp(width=WIDTH, out=CLASSES, hidden=32, layers=2):
    widths = [width] + [hidden] * layers
    return nn.Sequential(*(part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.Tanh())), nn.Linear(hidden, out))


def batch(rank, step, rows=ROWS, width=WIDTH):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, width, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)


def train(rank, modules, step_loss, steps=STEPS, **of_batch):
    """`step_loss(step, x, y)` gives the loss, and runs backward itself where it gives None."""
    module = nn.ModuleList(modules)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    numbers = {}
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(rank, step, **of_batch)  # which live until backward is done
        loss = step_loss(step, x, y)
        if loss is not None:
            loss.backward()
            numbers[f"{step}/loss"] = loss.detach().clone()
        for name, parameter in module.named_parameters():
            numbers[f"{step}/gradient/{name}"] = None if parameter.grad is None else parameter.grad.detach().clone()
        optimizer.step()
    for name, value in module.state_dict().items():
        numbers[f"end/{name}"] = value.detach().clone()
    numbers["end/random"] = torch.get_rng_state()
    return numbers


# ---- collectives -------------------------------------------------------------------------------------------------------------------


@job
def all_reduce_of_inputs(rank):
    net = mlp()

    def loss(step, x, y):
        h = x * 2
        dist.all_reduce(h)
        return F.cross_entropy(net(h), y)
    return train(rank, [net], loss)


@job
def all_reduce_that_is_read_before_and_after(rank):
    net = mlp()

    def loss(step, x, y):
        h = x * 2
        before = h.mean(0, keepdim=True)
        dist.all_reduce(h)
        return F.cross_entropy(net(h - before), y)
    return train(rank, [net], loss)


@job
def asynchronous(rank):
    net, other = mlp(), mlp()

    def loss(step, x, y):
        h = x * 2
        work = dist.all_reduce(h, async_op=True)
        aside = F.cross_entropy(other(x), y)
        work.wait()
        return F.cross_entropy(net(h), y) + aside
    return train(rank, [net, other], loss)


@job
def centre_over_ranks(rank):
    """DINO's: the mean of the teacher's outputs over all ranks, moved along with the steps."""
    student, teacher = mlp(), mlp()
    teacher.requires_grad_(False)
    centre = torch.zeros(1, CLASSES)
    seen = {}

    def loss(step, x, y):
        nonlocal centre
        with torch.no_grad():
            target = teacher(x)
        value = torch.sum(-F.softmax((target - centre) / 0.04, dim=-1) * F.log_softmax(student(x) / 0.1, dim=-1), dim=-1).mean()
        with torch.no_grad():
            total = torch.sum(target, dim=0, keepdim=True)
            dist.all_reduce(total)
            centre = centre * 0.9 + total / (len(target) * dist.get_world_size()) * 0.1
        seen[f"{step}/centre"] = centre.clone()
        return value
    numbers = train(rank, [student, teacher], loss)
    return numbers | seen


@job
def statistic_of_the_batch(rank):
    """A mean over all ranks that the same step reads."""
    net, head = mlp(out=WIDTH), mlp()

    def loss(step, x, y):
        h = net(x)
        total = h.detach().sum(0)
        dist.all_reduce(total)
        return F.cross_entropy(head(h - total / (2 * len(x))), y)
    return train(rank, [net, head], loss)


@job
def functional_all_reduce(rank):
    net = mlp()

    def loss(step, x, y):
        h = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        return F.cross_entropy(net(h + 1), y)
    return train(rank, [net], loss)


@job
def functional_waited_for(rank):
    net = mlp()

    def loss(step, x, y):
        h = torch.ops._c10d_functional.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)
        h = torch.ops._c10d_functional.wait_tensor(h)
        return F.cross_entropy(net(h), y)
    return train(rank, [net], loss)


@job
def functional_gathers(rank):
    net = mlp()

    def loss(step, x, y):
        group = dist.group.WORLD
        everything = functional.all_gather_tensor(x * 2, 0, group)
        mine = functional.reduce_scatter_tensor(everything * 1, "sum", 0, group)
        mean = functional.wait_tensor(functional.broadcast(everything.mean(0), 1, group))
        return F.cross_entropy(net(mine - mean), y)
    return train(rank, [net], loss)


@job
def gathered_features(rank):
    """Contrastive: the others' features are constants, one's own have a gradient."""
    net = mlp(out=8)

    def loss(step, x, y):
        z = F.normalize(net(x), dim=1)
        gathered = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, z)
        gathered[rank] = z
        logits = z @ torch.cat(gathered).t() / 0.5
        return F.cross_entropy(logits, torch.arange(len(x)) + rank * len(x))
    return train(rank, [net], loss)


@job
def gathered_into_a_tensor(rank):
    net = mlp(out=8)

    def loss(step, x, y):
        z = net(x)
        others = torch.empty(2 * len(x), 8)
        dist.all_gather_into_tensor(others, z.detach())
        return ((z.unsqueeze(1) - others.unsqueeze(0)) ** 2).mean()
    return train(rank, [net], loss)


@job
def gathered_with_gradient(rank):
    import torch.distributed.nn.functional as with_gradient
    net, head = mlp(out=8), mlp(8)

    def loss(step, x, y):
        z = net(x)
        everything = torch.cat(with_gradient.all_gather(z))
        return F.cross_entropy(head(z), y) + (everything ** 2).mean()
    return train(rank, [net, head], loss)


@job
def others(rank):
    """Every other operation there is for this backend."""
    net = mlp()

    def loss(step, x, y):
        h = x * 2
        dist.broadcast(h, 1)
        parts = list((x + 1).chunk(2))
        got = [torch.zeros_like(p) for p in parts]
        dist.all_to_all(got, parts) if dist.get_backend() != "gloo" else dist.all_to_all_single(got[0], parts[0])
        h = h + torch.cat([got[0], got[0]])
        if rank == 0:
            dist.send(h.clone(), 1)
            back = torch.empty_like(h)
            dist.irecv(back, 1).wait()
        else:
            back = torch.empty_like(h)
            dist.recv(back, 0)
            dist.isend(h.contiguous(), 0).wait()
        kept = torch.zeros_like(x)
        dist.scatter(kept, [x * 3, x * 4] if rank == 0 else None, 0)
        lists = [torch.zeros_like(x) for _ in range(2)] if rank == 1 else None
        dist.gather(x * 5, lists, 1)
        total = x.mean(0)
        dist.reduce(total, 0)
        dist.barrier()
        return F.cross_entropy(net(h + back + kept + (lists[0] if lists else 0) + (total if rank == 0 else 0)), y)
    return train(rank, [net], loss)


@job
def losses_for_the_log(rank):
    """Averaged in place, before backward, with the graph still on them."""
    net, aside = mlp(), mlp()
    seen = {}

    def loss(step, x, y):
        first, second = F.cross_entropy(net(x), y), F.mse_loss(aside(x), net(x).detach())
        total = first + 0.1 * second
        dist.all_reduce(first.detach())
        seen[f"{step}/first"] = first.detach().clone()
        shown = total.detach().clone()
        dist.all_reduce(shown)
        seen[f"{step}/shown"] = shown
        return total
    return train(rank, [net, aside], loss) | seen


@job
def loss_reduced_in_place(rank):
    net = mlp()

    def loss(step, x, y):
        value = F.cross_entropy(net(x), y)
        dist.all_reduce(value)
        return value
    return train(rank, [net], loss)


@job
def outputs_reduced_in_place(rank):
    """What a layer gives is summed over the ranks with its graph on it, and read on."""
    net, head = mlp(out=WIDTH), mlp()

    def loss(step, x, y):
        h = net(x)
        dist.all_reduce(h)
        return F.cross_entropy(head(h), y)
    return train(rank, [net, head], loss)


@job
def two_stages_around_a_collective(rank):
    """No gradient passes: the first net is trained by a loss of its own."""
    first, second = mlp(out=WIDTH), mlp()

    def loss(step, x, y):
        h = first(x)
        shared = h.detach().clone()
        dist.all_reduce(shared)
        return F.cross_entropy(second(shared), y) + (h ** 2).mean()
    return train(rank, [first, second], loss)


# ---- DistributedDataParallel -----------------------------------------------------------------------------------------------------------


@job
def ddp(rank):
    net = DistributedDataParallel(mlp(), bucket_cap_mb=0.001)
    return train(rank, [net], lambda step, x, y: F.cross_entropy(net(x), y))


@job
def ddp_bucket_views(rank):
    net = DistributedDataParallel(mlp(), gradient_as_bucket_view=True, bucket_cap_mb=0.001)
    return train(rank, [net], lambda step, x, y: F.cross_entropy(net(x), y))


@job
def ddp_batch_norm(rank):
    net = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, CLASSES)))
    return train(rank, [net], lambda step, x, y: F.cross_entropy(net(x), y))


@job
def ddp_no_sync(rank):
    net = DistributedDataParallel(mlp())

    def loss(step, x, y):
        with net.no_sync():
            F.cross_entropy(net(x[::2]), y[::2]).backward()
        return F.cross_entropy(net(x[1::2]), y[1::2])
    return train(rank, [net], loss)


@job
def ddp_several_forwards(rank):
    net = DistributedDataParallel(mlp(out=8))

    def loss(step, x, y):
        both = torch.cat([x, x.flip(1)])
        a, b = net(both).chunk(2)
        return F.mse_loss(a, b.detach()) + a.pow(2).mean()
    return train(rank, [net], loss)


class TwoHeads(nn.Module):
    def __init__(self, drops, width=WIDTH, hidden=32):
        super().__init__()
        self.body, self.used, self.other, self.never = nn.Linear(width, hidden), nn.Linear(hidden, CLASSES), nn.Linear(hidden, 3), nn.Linear(4, 4)
        self.drops = drops

    def forward(self, x):
        h = torch.tanh(self.body(x))
        used, other = self.used(h), self.other(h)
        return used if self.drops else (used, other)


@job
def ddp_unused_head_is_dropped(rank):
    net = DistributedDataParallel(TwoHeads(True), find_unused_parameters=True)
    return train(rank, [net], lambda step, x, y: F.cross_entropy(net(x), y))


@job
def ddp_unused_head_is_handed_out(rank):
    net = DistributedDataParallel(TwoHeads(False), find_unused_parameters=True)
    return train(rank, [net], lambda step, x, y: F.cross_entropy(net(x)[0], y))


@job
def ddp_heads_in_turn(rank):
    """Another head in each step, and on each rank."""
    net = DistributedDataParallel(TwoHeads(False), find_unused_parameters=True)

    def loss(step, x, y):
        used, other = net(x)
        return F.cross_entropy(used, y) if (step + rank) % 2 else other.pow(2).mean()
    return train(rank, [net], loss)


@job
def ddp_static_graph(rank):
    net = DistributedDataParallel(TwoHeads(True), static_graph=True)
    return train(rank, [net], lambda step, x, y: F.cross_entropy(net(x), y))


@job
def ddp_gan(rank):
    """Two reducers in one backward pass."""
    generator, critic = DistributedDataParallel(mlp(out=WIDTH)), DistributedDataParallel(mlp(out=1))
    return train(rank, [generator, critic], lambda step, x, y: F.softplus(-critic(generator(x))).mean() + critic(x).mean() * 0.1)


def wide(out, hidden=512):
    return nn.Sequential(nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, out))


def rows_from(x, step):
    """A batch of its own, of another size in each step: nothing of it is known before."""
    return torch.tensor(x[step:].tolist(), dtype=x.dtype)


def backward_that_runs_out(loss, step):
    """In each step another allocation of the backward pass fails; the first is of the gradient that it starts from."""
    koila = Koila()
    if koila.library and os.environ.get("TEST_FAIL"):
        koila.limit(0, f"nth:{step + 2}")
    loss.backward()
    koila.library and koila.limit(0)


@job
def ddp_gan_that_runs_out(rank):
    """Two reducers in one backward pass: memory runs out when the first one has all its gradients, and before the second one has."""
    generator, critic = DistributedDataParallel(mlp(out=WIDTH, layers=6)), DistributedDataParallel(mlp(out=1))
    koila = Koila()
    wanted = False

    def hook(parameter):
        nonlocal wanted
        if wanted and koila.library and os.environ.get("TEST_FAIL"):
            koila.limit(0, "nth:9")  # the second reducer makes a few first
        wanted = False
    generator.module[-1].bias.register_post_accumulate_grad_hook(hook)

    def loss(step, x, y):
        nonlocal wanted
        value = F.softplus(-critic(generator(rows_from(x, step)))).mean()
        wanted = True
        value.backward()
        koila.library and koila.limit(0)
        return None
    return train(rank, [generator, critic], loss, steps=4)


@job
def callbacks_by_hand(rank):
    """Hooks queue callbacks on the engine: each is called once, in the order of the plain run, and after all gradients are there."""
    net = mlp()
    calls = []

    def hook(parameter, name):
        def queue():
            calls.append((name, all(p.grad is not None for p in net.parameters())))
        torch.autograd.Variable._execution_engine.queue_callback(queue)
    for number, parameter in enumerate(net.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda p, number=number: hook(p, number))

    def loss(step, x, y):
        value = F.cross_entropy(net(rows_from(x, step)), y[step:])
        backward_that_runs_out(value, step)
        return None
    numbers = train(rank, [net], loss, steps=16)
    return numbers | {"calls": torch.tensor([[n, whole] for n, whole in calls])}


# ---- under a budget --------------------------------------------------------------------------------------------------------------------


def under_a_budget(rank, modules, step_loss, rows=2048):
    """From the second step on within 60% of what the first needed."""
    koila = Koila()
    share = float(os.environ.get("TEST_SHARE", 0))

    def loss(step, x, y):
        if koila.library and share and step == 0:
            koila.reset_peak()
        if koila.library and share and step == 1:
            live = koila.live()
            koila.limit(int(live + share * (koila.peak() - live)))
        return step_loss(step, x, y)
    numbers = train(rank, modules, loss, rows=rows)
    koila.library and koila.limit(0)
    return numbers


@job
def budget_all_reduce_of_inputs(rank):
    net = wide(CLASSES)

    def loss(step, x, y):
        h = x * 2
        dist.all_reduce(h)
        return F.cross_entropy(net(h), y)
    return under_a_budget(rank, [net], loss)


@job
def budget_statistic(rank):
    net, head = wide(WIDTH, 256), wide(CLASSES, 256)

    def loss(step, x, y):
        h = net(x)
        total = h.detach().sum(0)
        dist.all_reduce(total)
        return F.cross_entropy(head(h - total / (2 * len(x))), y)
    return under_a_budget(rank, [net, head], loss)


@job
def budget_ddp_gan(rank):
    generator, critic = DistributedDataParallel(wide(WIDTH)), DistributedDataParallel(wide(1))
    return under_a_budget(rank, [generator, critic], lambda step, x, y: F.softplus(-critic(generator(x))).mean())


@job
def budget_ddp_unused(rank):
    net = DistributedDataParallel(TwoHeads(True, hidden=2048), find_unused_parameters=True)
    return under_a_budget(rank, [net], lambda step, x, y: F.cross_entropy(net(x), y))


# ---- sharded ---------------------------------------------------------------------------------------------------------------------------


@job
def fsdp2(rank):
    from torch.distributed.fsdp import fully_shard
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)], nn.Linear(256, CLASSES))
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    numbers = train(rank, [net], lambda step, x, y: F.cross_entropy(net(x), y), width=256, rows=256)
    return {name: value.to_local() if hasattr(value, "to_local") else value for name, value in numbers.items()}


@job
def fsdp1(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel
    net = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    numbers = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        numbers[f"{step}/loss"] = loss.detach()
    return numbers


@job
def tensor_parallel(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def loss(step, x, y):
        x, y = batch(0, step)  # the same on every rank
        return F.cross_entropy(net(x), y)
    numbers = train(rank, [net], loss)
    return {name: value.to_local() if hasattr(value, "to_local") else value for name, value in numbers.items()}


# ----------------------------------------------------------------------------------------------------------------------------------------


def main():
    rank, folder, *names = sys.argv[1:]
    rank = int(rank)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    koila = Koila()
    failed = False
    for name in names:
        group = dist.distributed_c10d._get_default_group()
        result = {"outcome": "ok"}
        before = group._get_sequence_number_for_group()
        torch.manual_seed(7)
        try:
            koila.reset_peak()
            result["numbers"] = {k: v if v is None else v.detach().clone() for k, v in JOBS[name](rank).items()}
        except torch.OutOfMemoryError as error:
            result |= {"outcome": "oom", "message": str(error)}
        except Exception as error:
            traceback.print_exc()
            result |= {"outcome": "error", "message": f"{type(error).__name__}: {error}"}
        result["collectives"] = group._get_sequence_number_for_group() - before
        result["peak"] = koila.peak()
        if report := koila.report():
            result["regions"] = report.get("regions_total", {}).get("count", 0)
            result["rescued"] = sum(e["count"] for e in report.get("oom_events", []) if e["outcome"] == "rescued")
            result["reasons"] = [r["reason"] for r in report.get("refusals", [])]
        Path(folder, f"{name}.{rank}.new").write_bytes(pickle.dumps(result))
        os.replace(Path(folder, f"{name}.{rank}.new"), Path(folder, f"{name}.{rank}"))
        failed = result["outcome"] != "ok"
        if failed:
            break  # the other rank may be anywhere
    if not failed:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    if failed:
        os._exit(1)


if __name__ == "__main__":
    main()
