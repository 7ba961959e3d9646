"""Short programs as people write them for a GPU, on the CPU and on the simulated device, and what only a device can do.

    python tests/cuda/device/check_programs.py [name...]
"""

import copy
import functools
import io
import os
import subprocess
import sys
import traceback
from pathlib import Path

os.environ.setdefault("SIM_CUDA_GENERATOR", "cpu")  # the same draws on both devices
os.environ.setdefault("SIM_CAPACITY", "64MiB")  # small, so that memory runs out soon
sys.path[:0] = [str(Path(__file__).resolve().parent)]

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import sim_cuda  # noqa: E402, F401

ON_BOTH, ON_DEVICE = [], []


def on_both(function=None, *, tolerance=1e-6):
    """Called with a device; returns tensors, which have to be the same on both."""
    if function is None:
        return functools.partial(on_both, tolerance=tolerance)
    function.tolerance = tolerance
    ON_BOTH.append(function)
    return function


def on_device(function):
    """Called alone; asserts."""
    ON_DEVICE.append(function)
    return function


def net(device):
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5)).to(device)


def batch(device, rows=16):
    return torch.randn(rows, 12).to(device), torch.randint(5, (rows,)).to(device)


def trained(device, optimizer_of, steps=4, **step_arguments):
    model = net(device)
    optimizer = optimizer_of(model.parameters())
    for _ in range(steps):
        x, y = batch(device)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step(**step_arguments)
    return [*model.parameters(), *model.buffers()]


@on_both
def sgd_foreach(device):
    return trained(device, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True))


@on_both
def adamw_default(device):
    return trained(device, lambda p: torch.optim.AdamW(p, 1e-2, eps=1e-4, foreach=device == "cuda"))


@on_both
def adam_fused(device):
    return trained(device, lambda p: torch.optim.Adam(p, 1e-2, eps=1e-4, fused=True))


@on_both
def other_optimizers(device):
    return [t for kind in (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adamax, torch.optim.NAdam)
            for t in trained(device, lambda p: kind(p, 1e-3, eps=1e-3), 2)]


def mixed_precision(device, dtype):
    model = nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 5)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, enabled=dtype == torch.float16)
    for _ in range(3):
        x, y = batch(device)
        with torch.autocast(device, dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return list(model.parameters())


@on_both(tolerance=1e-2)
def autocast_bfloat16(device):
    return mixed_precision(device, torch.bfloat16)


@on_both(tolerance=1e-2)
def autocast_float16_with_scaler(device):
    return mixed_precision(device, torch.float16)


@on_both
def checkpoint_with_dropout(device):
    from torch.utils.checkpoint import checkpoint
    model, (x, y) = net(device), batch(device)
    x.requires_grad_()
    for reentrant in (False, True):
        F.cross_entropy(checkpoint(model, x, use_reentrant=reentrant), y).backward()
    return [x.grad, *[p.grad for p in model.parameters()]]


@on_both
def copies_and_files(device):
    model = net(device)
    other = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "x": batch(device)}, file)
    file.seek(0)
    found = torch.load(file)
    file.seek(0)
    at_home = torch.load(file, map_location="cpu")
    other.load_state_dict(found["model"])
    assert found["x"][0].device.type == device and at_home["x"][0].device.type == "cpu"
    assert next(other.parameters()).data_ptr() != next(model.parameters()).data_ptr()
    return [*other.parameters(), at_home["x"][0], found["x"][1]]


@on_both
def loader_with_pinned_memory(device):
    data = torch.utils.data.TensorDataset(torch.randn(20, 12), torch.randint(5, (20,)))
    seen = []
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, pin_memory=device == "cuda"):
        assert x.is_pinned() == (device == "cuda")
        seen += [x.to(device, non_blocking=True), y.to(device, non_blocking=True)]
    return seen


@on_both
def out_arguments_and_resizing(device):
    x = torch.randn(6, 8).to(device)
    out, empty = torch.empty(6, 8, device=device), torch.empty(0, device=device)
    torch.add(x, 1, out=out)
    torch.matmul(x, x.t(), out=empty)
    values, indices = torch.empty(0, device=device), torch.empty(0, dtype=torch.long, device=device)
    torch.sort(x, dim=1, out=(values, indices))
    grown = torch.ones(3, device=device)
    grown.resize_(5)[3:] = 2
    shared = torch.empty(0, device=device).set_(x.untyped_storage(), 3, (4, 2), (2, 1))
    shared.mul_(2)
    x.t_().add_(1)
    flat = torch.zeros(4, device=device)
    flat.data = x[0]
    return [out, empty, values, indices, grown, shared, x, flat]


@on_both
def views_and_writes(device):
    x = torch.zeros(4, 6, 3).to(device)
    x[1, ::2] = 1
    x[:, -1].copy_(torch.arange(12.).view(4, 3))
    x.view(-1)[5:9].add_(torch.ones(4, device=device))
    x[x > 3] = -1
    x[torch.tensor([0, 2], device=device), :, 1] += 5
    x.index_put_((torch.tensor([0, 0, 3]),), torch.ones(6, 3, device=device), accumulate=True)
    y = x.permute(2, 0, 1).unfold(2, 2, 2).transpose(0, 1)
    y.masked_fill_(y == 5, 7)
    z = torch.view_as_complex(x[..., :2].contiguous())
    return [x, y, x.diagonal().clone(), torch.view_as_real(z.conj().resolve_conj()), z.conj() * 2, x.real.neg(), x.expand(2, 4, 6, 3).sum(0)]


@on_both
def results_of_unknown_size(device):
    x = torch.randint(6, (30,)).to(device)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    return [values, inverse, counts, x.nonzero(), x[x > 2], torch.where(x > 3)[0], x.bincount(minlength=8), x.repeat_interleave(x),
            torch.histc(x.float(), 5), x.sort().values, x.topk(4).values, x.unique_consecutive()]


@on_both
def linear_algebra_and_fourier(device):
    x = torch.randn(5, 5, dtype=torch.float64).to(device)
    a = (x @ x.t() + torch.eye(5, device=device, dtype=torch.float64)).requires_grad_()
    loss = torch.linalg.cholesky(a).sum() + torch.linalg.solve(a, x).sum() + torch.logdet(a) + torch.linalg.svdvals(a).sum()
    (loss + torch.fft.rfft(a).abs().sum() + torch.linalg.inv(a).sum() + torch.cdist(a, x).sum()).backward()
    return [loss, a.grad, torch.einsum("ij,kj->ik", x, x)]


@on_both
def layers(device):
    image = torch.randn(4, 4, 10, 10).to(device).requires_grad_()
    tokens = torch.randint(20, (4, 7)).to(device)
    h = nn.Conv2d(4, 8, 3, groups=4, padding=1).to(device)(image)
    h = nn.BatchNorm2d(8).to(device)(h) + nn.GroupNorm(4, 8).to(device)(h) + nn.InstanceNorm2d(8, affine=True).to(device)(h)
    h = F.adaptive_avg_pool2d(F.max_pool2d(F.interpolate(h, scale_factor=2, mode="bicubic"), 2), 3)
    h = nn.ConvTranspose2d(8, 2, 2, dilation=2).to(device)(h).flatten(1)
    e = nn.Embedding(20, 8, padding_idx=0).to(device)(tokens) + nn.Embedding(20, 8, max_norm=1.0).to(device)(tokens)
    e = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(device)(e)
    r, _ = nn.LSTM(8, 6, 2, batch_first=True, dropout=0.2, bidirectional=True).to(device)(e)
    g, _ = nn.GRU(12, 5, bias=False).to(device)(r)
    logs = F.log_softmax(g.transpose(0, 1), -1)
    ctc = F.ctc_loss(logs, torch.ones(4, 2, dtype=torch.long, device=device), torch.full((4,), 7), torch.full((4,), 2))
    loss = h.square().mean() + g.square().mean() + ctc + nn.PReLU().to(device)(e).mean() + F.scaled_dot_product_attention(e, e, e).mean()
    loss.backward()
    return [loss, image.grad]


@on_both
def evaluation(device):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).to(device).eval()
    x = torch.randn(3, 5, 8).to(device)
    with torch.no_grad():
        first = model(x)
    with torch.inference_mode():
        return [first, model(x) * 2, first.argmax(-1), (first > 0).float().mean()]


@on_both
def random_numbers(device):
    x = torch.empty(6, 5, device=device).uniform_()
    return [x, torch.bernoulli(x), torch.multinomial(x, 2), torch.normal(x, 1.0), torch.rand_like(x), F.gumbel_softmax(x, dim=1),
            F.rrelu(x, training=True), torch.randperm(9, device=device), torch.poisson(x),
            nn.init.orthogonal_(torch.empty(4, 4, device=device))]


@on_both
def gradients(device):
    model, (x, y) = net(device), batch(device)
    loss = F.cross_entropy(model(x), y)
    first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    penalty = sum(g.square().sum() for g in first)
    penalty.backward()
    hessian = torch.autograd.functional.hessian(lambda v: (v**3).sum(), x[0])
    per_row = torch.func.vmap(torch.func.grad(lambda v: v.sin().sum()))(x)
    return [penalty, hessian, per_row, *[p.grad for p in model.parameters() if p.grad is not None]]


@on_device
def out_of_memory_and_on_again():
    """The allocator's own error; with what was in its way gone, the program goes on."""
    free, total = torch.cuda.mem_get_info()
    held = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        torch.empty(total, dtype=torch.uint8, device="cuda")
        raise AssertionError("there was memory for more than there is")
    except torch.cuda.OutOfMemoryError as error:
        text = str(error)
    native = text.startswith("CUDA out of memory. Tried to allocate") and "reserved by PyTorch but unallocated" in text
    assert native or "would exceed allowed memory" in text, text  # the second: backend:cudaMallocAsync
    assert not native or torch.cuda.memory_stats()["num_ooms"] == before + 1
    del held
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= free
    assert torch.ones(total // 8, device="cuda").sum().item() == total // 8
    torch.cuda.empty_cache()


@on_device
def out_of_memory_leaves_no_trace():
    """Neither running statistics nor the generator show that an operator was tried."""
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    norm, x = nn.BatchNorm1d(1).cuda(), torch.empty(total // 10, 1, device="cuda")
    held = torch.empty(int(total * 0.3), dtype=torch.uint8, device="cuda")
    state = torch.get_rng_state(), torch.cuda.get_rng_state()
    for attempt in (lambda: norm(x), lambda: torch.bernoulli(x, 0.5), lambda: F.dropout(x)):
        try:
            attempt()
            raise AssertionError("it had memory")
        except torch.OutOfMemoryError:
            pass
    assert norm.running_mean.item() == 0 and norm.running_var.item() == 1
    assert torch.equal(state[0], torch.get_rng_state()) and torch.equal(state[1], torch.cuda.get_rng_state())
    del held
    torch.cuda.empty_cache()


@on_device
def nothing_leaks():
    def step():
        model, (x, y) = net("cuda"), batch("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        step()
    assert torch.cuda.memory_allocated() == before, (before, torch.cuda.memory_allocated())
    assert torch.cuda.max_memory_allocated() > before


@on_device
def generators():
    torch.cuda.manual_seed_all(7)
    assert torch.cuda.initial_seed() == 7
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    draw = torch.rand(4, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    assert torch.equal(draw, torch.rand(4, device="cuda", generator=torch.Generator("cuda").manual_seed(3)))
    generator = torch.Generator("cuda").manual_seed(3)
    assert not torch.equal(torch.rand(4, device="cuda", generator=generator), torch.rand(4, device="cuda", generator=generator))


@on_device
def checkpoint_repeats_its_draws():
    """With the device's generator, and not the CPU's."""
    child = "import torch, sim_cuda, check_programs; check_programs.assert_checkpoint_repeats_its_draws()"
    environment = {**os.environ, "SIM_CUDA_GENERATOR": "own", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", child], env=environment, check=True)


def assert_checkpoint_repeats_its_draws():
    from torch.utils.checkpoint import checkpoint
    model, x = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Dropout(0.5)).cuda(), torch.randn(16, 12, device="cuda")
    found = []
    for run in (model, lambda v: checkpoint(model, v, use_reentrant=False), lambda v: checkpoint(model, v, use_reentrant=True)):
        torch.manual_seed(5)
        leaf = x.clone().requires_grad_()
        run(leaf).square().sum().backward()
        found.append(leaf.grad)
    assert found[0].any() and all(torch.equal(found[0], other) for other in found[1:])


@on_device
def streams_and_events():
    stream = torch.Stream("cuda")
    with stream:
        x = torch.ones(8, device="cuda")
    x.record_stream(stream)
    event = torch.Event("cuda")
    event.record()
    event.synchronize()
    torch.cuda.synchronize()
    torch.accelerator.synchronize()
    assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1]


def alike(function):
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        found = function(device)
        assert all(t.device.type == "cpu" or device == "cuda" for t in found)
        results.append([t.detach().cpu() for t in found])
    for i, (a, b) in enumerate(zip(*results)):
        torch.testing.assert_close(b, a, rtol=10 * function.tolerance, atol=function.tolerance, msg=lambda text: f"result {i}: {text}")


def main():
    torch.backends.cuda.enable_flash_sdp(False)
    chosen, bad = sys.argv[1:], []
    for function in ON_BOTH + ON_DEVICE:
        if chosen and function.__name__ not in chosen:
            continue
        try:
            alike(function) if function in ON_BOTH else function()
            print(f"ok     {function.__name__}")
        except Exception as error:
            bad.append(function.__name__)
            print(f"FAILED {function.__name__}: {str(error).strip()[:300]}")
            if chosen:
                traceback.print_exc()
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
