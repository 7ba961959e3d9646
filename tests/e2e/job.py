"""Runs training tasks, each in a child of its own: one JSON request a line on stdin, one JSON answer a line on stdout.

Importing torch takes over a second and a step milliseconds, so one process imports, and forks for every task. What is parsed once
per process (KOILA_MODE, KOILA_MICROBATCH) is set by whoever starts this server; budget and injection are set in the child through
koila's C ABI, right before the first step. A child that crashes or hangs takes nobody with it.

A request: {"case": {family, optimizer, steps, rows, seed, dtype, shuffle}, "budget": bytes, "inject": spec, "out": path, "timeout": s}
A budget of [[step, bytes], ...] changes before those steps, and has what koila did up to the end of each step written down.
An injection `passes:SPEC` is in force in forward and backward only, and anew in each step with the step's number at its end (random:RATE:SEED).
The answer: {"signal": n, "exit": n, "timeout": bool}; the child's result is pickled to `out`, its stderr goes to `out`.log.
"""

import contextlib
import faulthandler
import functools
import importlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401  (the first optimizer of a process imports it, which takes a second)

import coupled  # noqa: F401  (each of these registers its families)
import guesses  # noqa: F401
import handed_out  # noqa: F401
import indexed  # noqa: F401
import kernels  # noqa: F401
import models  # noqa: F401
import opaque  # noqa: F401
import policies  # noqa: F401
import reads  # noqa: F401
import real_models  # noqa: F401
import refused  # noqa: F401
import stages  # noqa: F401
import styles  # noqa: F401
import traps  # noqa: F401
from task import FAMILIES, Record

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import CPU, Koila  # noqa: E402

NUMBERS = {"cpu": CPU, "cuda": 0}


def bytes_held(*tensors):
    """Bytes of the storages of `tensors`, each storage once."""
    storages = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def fixed_bytes(model, optimizer, data):
    """What a run holds whatever the size of its micro-batches: parameters, gradients, buffers, optimizer state, and the batch."""
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    return bytes_held(*parameters, *[p.grad for p in parameters], *model.buffers(), *states, *data)


@contextlib.contextmanager
def on_device(device):
    """Tensors that a task makes without naming a device are the device's, and where it names the CPU for autocast it means the device."""
    if device == "cpu":
        yield
        return
    sys.path.append(str(Path(__file__).resolve().parent.parent / "cuda" / "device"))
    import sim_cuda
    autocast = torch.autocast
    # One kernel for attention is what the CPU has, and the simulated device has not.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.autocast = lambda _, **rest: autocast(device, **rest)
    with sim_cuda.cuda_by_default():
        yield
    torch.autocast = autocast


def named(data, dims):
    """The batch by name, as a program says it with koila; without koila the same tensors. `dims`: of each tensor of the batch, by commas; one for
    all; `-`: not that one."""
    if not dims or not hasattr(torch.ops.koila, "lazy"):
        return data
    dims = dims.split(",")
    return tuple(t if dim == "-" else torch.ops.koila.lazy(t, int(dim)) for t, dim in zip(data, dims * len(data) if len(dims) == 1 else dims))


def accumulated_step(task, model, optimizer, data, record, rows):
    batch = len(data[0])
    optimizer.zero_grad()
    loss = 0.0
    for parts in zip(*(t.split(rows) for t in data)):
        part = task.loss(model, *parts) * (len(parts[0]) / batch)
        part.backward()
        loss += part.detach()
    record.gradients(model)
    optimizer.step()
    record.value("loss", loss)


def ran_out(error):
    # Without its cache (PYTORCH_NO_CUDA_MEMORY_CACHING) PyTorch hands on CUDA's own error.
    return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, torch.AcceleratorError) and "out of memory" in str(error))


def run(case, budget, inject):
    with on_device(case.get("device", "cpu")):
        return run_here(case, budget, inject)


def run_here(case, budget, inject):
    koila = Koila(NUMBERS[case.get("device", "cpu")])
    torch.set_default_dtype(getattr(torch, case["dtype"]))
    torch.manual_seed(case["seed"])
    task = FAMILIES[case["family"]]()
    rows = case["rows"] or task.rows
    model = task.model()
    optimizer = task.optimizer(model, case["optimizer"])
    shuffle = torch.Generator().manual_seed(99)
    record = Record()
    result = {"outcome": "ok", "message": "", "fixed": 0, "live": [], "allocations": [], "seconds": [], "figures": []}
    # Limits that begin later than at the first step leave that step, or the first few, as they would be without koila.
    first = case.get("limit_from", 1)
    budgets = dict(budget) if isinstance(budget, list) else None
    in_passes = inject.removeprefix("passes:") if inject and inject.startswith("passes:") else None
    if in_passes:
        inject = None
        optimizer.register_step_pre_hook(lambda *_: koila.limit(budget))
    start = koila.allocations()
    # The most that is in use while a batch is drawn, and while a step runs. Where koila rescues, nobody else moves its marks.
    measured = os.environ.get("KOILA_MODE") == "track"
    stepping = loading = 0
    koila.reset_peak()
    try:
        for step in range(1, case["steps"] + 1):
            if step == first:
                koila.limit(0 if budgets else budget, inject)
                start = koila.allocations()
                stepping = loading = 0
                koila.reset_peak()
            if budgets and step in budgets:
                koila.limit(budgets[step], inject)
            began = time.perf_counter()
            record.at_step = step
            if measured:
                stepping = max(stepping, koila.peak() if step > first else 0)
                koila.reset_peak()
            # As in `for x, y in loader:`, the last batch lives until the next one is there, unless the program takes care.
            if case.get("drops"):
                data = None
            data = task.data(rows)
            if case["shuffle"]:
                data = task.permuted(data, torch.randperm(rows, generator=shuffle))
            data = named(data, case.get("named"))
            if measured:
                loading = max(loading, koila.peak())
                koila.reset_peak()
            if in_passes:
                koila.limit(budget, f"{in_passes}{step:04d}")
            if case.get("accumulate"):
                accumulated_step(task, model, optimizer, data, record, case["accumulate"])
            else:
                task.step(model, optimizer, data, record)
            result["fixed"] = max(result["fixed"], fixed_bytes(model, optimizer, data))
            result["seconds"].append(time.perf_counter() - began)
            if koila.library and step >= first:
                result["allocations"].append(koila.allocations() - start)
                result["live"].append(koila.live())
            if budgets and koila.library:
                report = koila.report()
                result["figures"].append((report["rescues"], report["regions_total"]["count"], report["micro_batch"]))
        task.finish(model, record)
    except Exception as error:
        result["outcome"] = "oom" if ran_out(error) else "error"
        result["message"] = str(error)
        result["type"] = type(error).__name__
        result["traceback"] = traceback.format_exc()
        result["step"] = record.at_step
        del error
    data = None
    result["peak"] = koila.peak()
    if measured:
        stepping = max(stepping, koila.peak())
        result.update(peak=max(stepping, loading), stepping=stepping, loading=loading)
    if koila.library:
        result["requests"] = koila.allocations() - start
    koila.limit(0)
    record.state(model, optimizer)
    result["arrays"] = record.arrays
    result["report"] = koila.report()
    return result


def child(request):
    log = os.open(request["out"] + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    os.dup2(2, 1)
    faulthandler.enable(sys.stderr)
    code = 0
    try:
        result = run(request["case"], request.get("budget"), request.get("inject"))
        with open(request["out"], "wb") as file:
            pickle.dump(result, file)
    except BaseException:
        traceback.print_exc()
        code = 3
    sys.stderr.flush()
    os._exit(code)


def wait(pid, seconds):
    """(status, whether it had to be killed)"""
    end = time.monotonic() + seconds
    pause = 0.001
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status, False
        if time.monotonic() > end:
            os.kill(pid, signal.SIGABRT)  # faulthandler writes where it hangs
            time.sleep(0.5)
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1], True
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


@functools.cache
def prepare(family):
    """Imports what a family needs, for this run and those to come."""
    for name in FAMILIES[family].imports:
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()


def serve():
    for line in sys.stdin:
        request = json.loads(line)
        prepare(request["case"]["family"])
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            child(request)
        status, killed = wait(pid, request.get("timeout", 60))
        answer = {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
                  "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0, "timeout": killed}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
