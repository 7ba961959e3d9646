"""A process that has imported torch, and what else is named, under some environment, and forks for each job: a line of JSON on stdin, a line on stdout when it has ended.
The job's results lie in `out`, its gradients and statistics in `out`.npz."""

import importlib
import json
import os
import signal
import sys
import time
import types
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def teach(job, budget):
    """What counts as out of memory for the alternatives that ask by the error's text is the budget's error too, which they would not all know; and koila in Python
    is told of the budget where it would ask a GPU."""
    is_failure = lambda error: "out of memory" in str(error) and job.failed()  # noqa: E731
    for module, name in (("accelerate.utils.memory", "should_reduce_batch_size"), ("lightning.pytorch.tuner.batch_size_scaling", "is_oom_error"), ("toma", "should_reduce_batch_size")):
        if module in sys.modules:
            setattr(sys.modules[module], name, is_failure)
    if "koila.lazy" in sys.modules:
        sys.modules["koila.lazy"].cuda = types.SimpleNamespace(is_available=lambda: True)
        sys.modules["koila.gpus"].free_memory = lambda: (budget or 1 << 40) - (job.budget.koila.live() or 0)


def run(request):
    import numpy as np
    import ways
    import works
    from job import Budget, Job
    if request["budget"]:
        Budget().limit(request["budget"] if request["paged"] else None)
    work = {**works.WORKS, **works.CURVE}[request["work"]]
    job = Job(work, **request["job"])
    job.contrastive, job.folder = works.contrastive, request["out"] + ".folder"
    teach(job, request["budget"])
    result = job.run(getattr(ways, request["way"]), request["budget"])
    if job.gradients:
        arrays = {f"g{step}_{i}": g for step, gradients in enumerate(job.gradients) for i, g in enumerate(gradients)}
        np.savez(request["out"] + ".npz", **arrays, **{f"s_{i}": s for i, s in enumerate(job.statistics)})
    Path(request["out"]).write_text(json.dumps(result))


def child(request):
    log = os.open(request["out"] + ".log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.dup2(log, 1), os.dup2(log, 2)
    status = 0
    try:
        run(request)
    except BaseException:
        import traceback
        traceback.print_exc()
        status = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)


def wait_for(pid, timeout):
    """Its wait status, or None where it ran too long and was ended."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main():
    warnings.simplefilter("ignore")
    import torch
    torch.set_num_threads(1)
    for name in ["torch.utils.data", "torch.utils.checkpoint", "torch._dynamo", "numpy", *sys.argv[1:]]:
        importlib.import_module(name)
    answers = os.dup(1)
    print("ready", file=os.fdopen(os.dup(answers), "w"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            child(request)
        status = wait_for(pid, request["timeout"])
        with os.fdopen(os.dup(answers), "w") as out:
            out.write(json.dumps({"status": status}) + "\n")


if __name__ == "__main__":
    main()
