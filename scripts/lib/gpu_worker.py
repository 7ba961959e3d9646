"""A process of scripts/gpu_check: does what it is asked, a line of JSON on stdin each, and answers with a line of JSON on stdout.

Several of these live side by side, plain and under koila in its modes, since starting torch on a GPU takes longer than most of what is asked.
"""

import json
import os
import sys
import time
import traceback

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from gpu_models import SIZES  # noqa: E402
from koila_abi import CPU, Koila  # noqa: E402

DEVICE = torch.device(sys.argv[1])
KINDS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
koila = Koila(0 if DEVICE.type == "cuda" else CPU)


def synchronize():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def allocated():
    return torch.cuda.memory_allocated() if DEVICE.type == "cuda" else koila.live() or 0


def clear():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    koila.reset_peak()


class Job:
    """A model, its optimizer and a batch."""

    def __init__(self, name, precision, rows=None):
        usual, model, batch = SIZES[DEVICE.type][name]
        self.rows = rows or usual
        self.precision = precision
        torch.manual_seed(7)
        self.model = model().to(DEVICE)
        # Plain gradient descent: an optimizer that divides by a gradient's size would blow rounding up.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.x, self.y = (t.to(DEVICE) for t in batch(self.rows, torch.Generator().manual_seed(11)))
        self.scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0 ** 10) if precision == "float16" else None

    def loss(self, x, y):
        with torch.autocast(DEVICE.type, KINDS[self.precision] or torch.bfloat16, enabled=self.precision != "float32"):
            return F.cross_entropy(self.model(x), y.flatten())

    def step(self, micro_batch=None):
        """One step; in micro-batches of so many rows the loop that one would write by hand."""
        self.optimizer.zero_grad()
        total = 0.0
        for begin in range(0, self.rows, micro_batch or self.rows):
            end = min(begin + (micro_batch or self.rows), self.rows)
            whole = end - begin == self.rows
            x, y = (self.x, self.y) if whole else (self.x[begin:end], self.y[begin:end])
            loss = self.loss(x, y)
            if not whole:
                loss = loss * ((end - begin) / self.rows)
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            total = total + loss.detach()
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        return total

    def gradients(self):
        return {name: p.grad.detach().float().cpu().clone() for name, p in self.model.named_parameters()}


def train(ask):
    """A few steps under a budget; what came out goes to a file."""
    clear()
    job = Job(ask["model"], ask["precision"])
    answer = {"outcome": "ok", "message": ""}
    losses, first = [], None
    try:
        if ask.get("budget"):
            koila.limit(ask["budget"])
        koila.reset_peak()
        for _ in range(ask["steps"]):
            losses.append(job.step(ask.get("micro_batch")).item())
            first = first or job.gradients()
    except torch.OutOfMemoryError as error:
        answer.update(outcome="oom", message=str(error).splitlines()[0])
    answer.update(peak=koila.peak(), base=allocated(), losses=losses)
    if DEVICE.type == "cuda":
        answer["reserved_peak"] = torch.cuda.max_memory_reserved()
    koila.limit(0)
    report = koila.report() if ask.get("out") else None
    if report:
        answer.update(rescues=report["rescues"], torch=report["torch_version"], notes=report["notes"],
                      refusals=[refusal["reason"] for refusal in report["refusals"]], micro_batch=report["micro_batch"])
    if answer["outcome"] == "ok" and losses and ask.get("out"):
        torch.save({"first": first, "last": job.gradients(), "losses": losses}, ask["out"] + ".pt")
    return answer


def compare(ask):
    """The gradients of two runs, tensor by tensor: the norm of the difference over the norm. A tensor that is zero but for rounding says nothing."""
    a, b = (torch.load(path + ".pt") for path in ask["paths"])
    worst = 0.0
    for when in ("first", "last"):
        total = sum(t.double().pow(2).sum() for t in a[when].values()).sqrt().item()
        for name, t in a[when].items():
            norm = t.double().norm().item()
            if norm > 1e-5 * total:
                worst = max(worst, (t.double() - b[when][name].double()).norm().item() / norm)
    losses = max(abs(p - q) / abs(p) for p, q in zip(a["losses"], b["losses"]))
    return {"gradients": worst, "losses": losses}


timed_jobs = {}


def timed(ask):
    """Seconds for some steps of a job that is kept between calls."""
    key = (ask["model"], ask["precision"])
    if key not in timed_jobs:
        timed_jobs.clear()
        clear()
        timed_jobs[key] = Job(*key)
        for _ in range(4):
            timed_jobs[key].step(ask.get("micro_batch"))
    synchronize()
    began = time.perf_counter()
    for _ in range(ask["steps"]):
        timed_jobs[key].step(ask.get("micro_batch"))
    synchronize()
    return {"seconds": time.perf_counter() - began}


def drop(ask):
    timed_jobs.clear()
    clear()
    return {}


def regions(ask):
    """How many regions ran so far, and in how many passes."""
    total = koila.report()["regions_total"]
    return {"count": total["count"], "runs": total["runs"]}


def rows_of(ask):
    return {"rows": SIZES[DEVICE.type][ask["model"]][0]}


# ---- only with a GPU ---------------------------------------------------------------------------------------------------------------------


def ledger(ask):
    """koila's figures beside the allocator's and the device's, with memory in use and after the cache was emptied."""
    clear()
    answer = {}
    job = Job("gpt", "float32")
    job.step()
    synchronize()

    def figures():
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        return {"live": koila.live(), "peak": koila.peak(), "reserved": stats["reserved_bytes.all.current"], "reserved_peak": stats["reserved_bytes.all.peak"],
                "device_used": total - free}

    answer["in use"] = figures()
    del job
    torch.cuda.empty_cache()
    answer["emptied"] = figures()
    answer["backend"] = torch.cuda.get_allocator_backend()
    report = koila.report()
    answer["sources"] = (report or {}).get("sources", [])
    answer["notes"] = (report or {}).get("notes", [])
    return answer


def graph(ask):
    """A training step captured and replayed; its losses."""
    clear()
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(128, 64, device=DEVICE), torch.randint(10, (128,), device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    losses = []
    for _ in range(5):
        captured.replay()
        losses.append(loss.item())
    return {"losses": losses, "weights": sum(p.double().sum().item() for p in model.parameters())}


def error_texts(ask):
    """What PyTorch says where memory runs out outside its caching allocator, and whether the device works on."""
    texts = {}
    for name, call in {"device": lambda: torch.empty(1 << 45, dtype=torch.uint8, device=DEVICE),
                       "pinned": lambda: torch.empty(1 << 45, dtype=torch.uint8, pin_memory=True)}.items():
        try:
            call()
            texts[name] = "no error"
        except Exception as error:
            texts[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    works = torch.ones(8, 8, device=DEVICE).mm(torch.ones(8, 8, device=DEVICE)).sum().item() == 512
    return {"texts": texts, "works": works}


def facts(ask):
    answer = {"torch": torch.__version__, "python": sys.version.split()[0], "koila": koila.library is not None}
    if DEVICE.type == "cuda":
        properties = torch.cuda.get_device_properties(0)
        answer.update(gpu=properties.name, bytes=properties.total_memory, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(),
                      bfloat16=torch.cuda.is_bf16_supported())
    return answer


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    if DEVICE.type == "cpu":
        torch.set_num_threads(1)
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            answer = globals()[ask["do"]](ask)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print("answer " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
