"""What only a GPU can show about koila, as a table and as JSON: see docs/gpu.md. Run by scripts/gpu_check, which builds first."""

import argparse
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 2 ** 20
MODELS = ("mlp", "cnn", "gpt", "vit")
# The norm of a gradient's error over the gradient's: float32 to rounding; half precision rounds each micro-batch's sums anew.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 1e-2}
STEADY_BOUND, OVERHEAD_BOUND = 1.05, 1.02


class Skip(Exception):
    """Why a part is not run."""


class Failed(Exception):
    """What was not as it must be, and the figures so far."""

    def __init__(self, reason, figures=None):
        super().__init__(reason)
        self.figures = figures or {}


class Worker:
    """A gpu_worker.py in an environment of its own."""

    def __init__(self, check, name, koila=True, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k not in ("LD_PRELOAD", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
        kept["OMP_NUM_THREADS"] = "1"
        if koila:
            kept.update(LD_PRELOAD=str(check.library), KOILA_REPORT="off")
        kept.update(variables)
        self.check, self.name = check, name
        self.log = check.work / f"{name}.log"
        self.process = subprocess.Popen([sys.executable, str(HERE / "gpu_worker.py"), check.device], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=open(self.log, "w"), text=True, env=kept)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def __call__(self, do, limit=120, **ask):
        if self.process.poll() is not None:
            raise Failed(f"the {self.name} process is gone: {self.last_words()}")
        self.process.stdin.write(json.dumps({"do": do, **ask}) + "\n")
        self.process.stdin.flush()
        end = time.monotonic() + max(1, min(limit, self.check.left()))
        while time.monotonic() < end:
            try:
                line = self.lines.get(timeout=0.5)
            except queue.Empty:
                continue
            if not line:
                self.process.wait()
                raise Failed(f"the {self.name} process died (status {self.process.returncode}): {self.last_words()}")
            if line.startswith("answer "):
                answer = json.loads(line[len("answer "):])
                if "error" in answer:
                    raise Failed(f"{self.name}: {answer['error']}")
                return answer
        self.close()
        raise Failed(f"the {self.name} process did not answer '{do}' in time")

    def last_words(self):
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:200] if lines else "it said nothing"

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
                self.process.wait(5)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self.process.kill()
                self.process.wait()


class Check:
    def __init__(self, args):
        self.device, self.library, self.only = args.device, args.library.resolve(), args.only
        self.work = Path(tempfile.mkdtemp(prefix="koila-gpu-check-"))
        self.end = time.monotonic() + args.seconds
        self.rows, self.workers = [], {}
        self.rounds = args.rounds
        self.cuda = args.device == "cuda"

    def left(self):
        return self.end - time.monotonic()

    def worker(self, name, **settings):
        """The process of that name; started at first, and again after it died."""
        if name not in self.workers or self.workers[name].process.poll() is not None:
            self.workers[name] = Worker(self, name, **settings)
        return self.workers[name]

    def plain(self):
        return self.worker("plain", koila=False)

    def track(self):
        return self.worker("track", KOILA_MODE="track")

    def rescue(self, precision="float32"):
        """One for each precision: a step that was rescued is learned, and one like it is split from its start and runs out no more."""
        return self.worker(f"rescue-{precision}", KOILA_MODE="rescue")

    def needs_gpu(self):
        if not self.cuda:
            raise Skip("needs a GPU")

    def part(self, name, function, *arguments):
        if self.only and not any(word in name for word in self.only):
            return
        began = time.monotonic()
        try:
            if self.left() < 10:
                raise Skip("no time left")
            status, reason, figures = "ok", "", function(*arguments) or {}
        except Skip as why:
            status, reason, figures = "skipped", str(why), {}
        except Failed as why:
            status, reason, figures = "failed", str(why), why.figures
        row = {"name": name, "status": status, "reason": reason, "figures": figures, "seconds": round(time.monotonic() - began, 2)}
        self.rows.append(row)
        shown = "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items() if not isinstance(v, (dict, list)))
        print(f"{status:8} {name:28} {reason or shown}"[:180], flush=True)

    # ---- parts: each gives figures, or raises Skip or Failed --------------------------------------------------------------------------

    def facts(self):
        found = self.plain()("facts")
        under = self.rescue()("facts")
        if found["koila"] or not under["koila"]:
            raise Failed("the preload is not where it should be", found)
        return found

    def budget_for(self, track, model, precision):
        """A budget that the step does not fit: a little over a third of what it needs above what stays."""
        whole = track("train", model=model, precision=precision, steps=2)
        if not whole["peak"] or whole["peak"] <= whole["base"]:
            raise Failed("koila counts no memory on the device", whole)
        budget = int(whole["base"] + 0.4 * (whole["peak"] - whole["base"]))
        return budget, whole["peak"]

    def exact(self, model, precision, track=None, rescue=None):
        track, rescue = track or self.track(), rescue or self.rescue(precision)
        if precision == "bfloat16" and self.cuda and not self.plain()("facts")["bfloat16"]:
            raise Skip("this GPU has no bfloat16")
        case = {"model": model, "precision": precision, "steps": 3}
        plain_out, koila_out = (str(self.work / f"{who}-{model}-{precision}") for who in ("plain", "koila"))
        self.plain()("train", **case, out=plain_out)
        budget, whole = self.budget_for(track, model, precision)
        figures = {"needs_mib": whole / MIB, "budget_mib": budget / MIB}
        if track("train", **case, budget=budget)["outcome"] != "oom":
            raise Failed("it fits the budget without koila: nothing is shown", figures)
        before = rescue("train", model=model, precision=precision, steps=0, out=koila_out)
        if not before["torch"]:
            raise Failed("koila stayed out: " + "; ".join(before["notes"]), figures)
        answer = rescue("train", **case, budget=budget, out=koila_out)
        figures.update(peak_mib=answer["peak"] / MIB, rescues=answer["rescues"] - before["rescues"], micro_batch=answer["micro_batch"])
        if answer["outcome"] != "ok":
            raise Failed("not rescued: " + (answer["refusals"][-1] if answer["refusals"] else answer["message"]), figures)
        figures.update(self.plain()("compare", paths=[plain_out, koila_out]))
        tolerance = TOLERANCE[precision]
        if precision != "float32":
            # What the loop by hand is off by, with the same micro-batch, is what rounding does.
            self.plain()("train", **case, micro_batch=answer["micro_batch"], out=plain_out + "-by-hand")
            figures["by_hand"] = self.plain()("compare", paths=[plain_out, plain_out + "-by-hand"])["gradients"]
            tolerance = max(tolerance, 2 * figures["by_hand"])
        if figures["rescues"] < 1:
            raise Failed("nothing was rescued", figures)
        if answer["peak"] > budget:
            raise Failed("more than the budget was in use", figures)
        if not max(figures["gradients"], figures["losses"]) <= tolerance:
            raise Failed(f"off by more than {tolerance:.0e}", figures)
        return figures

    def pair(self, a, b, steps=2):
        """The ratio of b's seconds to a's, in turn and the order swapped: its median and quartiles. a, b: functions that give seconds."""
        a(), b()
        ratios, times = [], []
        for i in range(self.rounds):
            first, second = (b, a) if i % 2 else (a, b)
            x, y = first(), second()
            plain, koila = (y, x) if i % 2 else (x, y)
            ratios.append(koila / plain)
            times.append((plain / steps, koila / steps))
        low, middle, high = statistics.quantiles(ratios, n=4)
        return {"ratio": middle, "low": low, "high": high, "plain_ms": 1e3 * statistics.median(t[0] for t in times),
                "koila_ms": 1e3 * statistics.median(t[1] for t in times)}

    def steady(self, model, precision):
        rows = self.plain()("rows_of", model=model)["rows"]
        micro = rows // 4
        split = Worker(self, f"split-{model}", KOILA_MODE="rescue", KOILA_MICROBATCH=str(micro))
        try:
            case = {"model": model, "precision": precision, "steps": 2}
            figures = {"rows": rows, "micro_batch": micro}
            figures.update(self.pair(lambda: self.plain()("timed", micro_batch=micro, **case)["seconds"], lambda: split("timed", **case)["seconds"]))
            self.plain()("drop")
            regions = split("regions")
            figures["regions"], figures["passes"] = regions["count"], regions["runs"]
            if not regions["runs"] > regions["count"] >= 2 * self.rounds:
                raise Failed("koila did not split the steps", figures)
        finally:
            split.close()
        # Above the bound by more than the spread.
        if figures["low"] > STEADY_BOUND:
            raise Failed(f"slower than the loop by hand by more than {STEADY_BOUND}", figures)
        return figures

    def overhead(self, model, precision):
        case = {"model": model, "precision": precision, "steps": 2}
        idle = self.worker("nothing-to-rescue", KOILA_MODE="rescue")
        figures = self.pair(lambda: self.plain()("timed", **case)["seconds"], lambda: idle("timed", **case)["seconds"])
        self.plain()("drop"), idle("drop")
        if figures["low"] > OVERHEAD_BOUND:
            raise Failed(f"costs more than {OVERHEAD_BOUND} with nothing to rescue", figures)
        return figures

    def judge_ledger(self, found):
        """What koila counts is what the allocator holds, and what other libraries got; and the device knows of no less."""
        figures = {"backend": found["backend"], "nvidia_smi_mib": self.nvidia_smi(), "sources": found["sources"]}
        for when in ("in use", "emptied"):
            now = found[when]
            others = sum(s.get("live_bytes", 0) for s in found["sources"] if s.get("library") != "c10_cuda" and s.get("device") == "cuda:0")
            figures.update({f"{when} live": now["live"], f"{when} reserved": now["reserved"], f"{when} untracked_mib": (now["device_used"] - now["live"]) / MIB})
            if now["live"] not in (now["reserved"], now["reserved"] + others):
                raise Failed(f"{when}: koila counts {now['live']}, the allocator {now['reserved']}, other libraries {others}", figures)
            if now["device_used"] < now["live"]:
                raise Failed(f"{when}: koila counts more than the device has in use", figures)
        if not found["in use"]["peak"] >= found["in use"]["reserved_peak"]:
            raise Failed("koila's peak is below the allocator's", figures)
        if not found["emptied"]["live"] < found["in use"]["live"]:
            raise Failed("empty_cache gave nothing back by koila's count", figures)
        return figures

    def ledger(self):
        self.needs_gpu()
        return self.judge_ledger(self.track()("ledger"))

    def nvidia_smi(self):
        if shutil.which("nvidia-smi") is None:
            return None
        asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
        first = asked.stdout.splitlines()[:1]
        return int(first[0]) if first and first[0].strip().isdigit() else None

    def allocator(self, setting, ledger):
        """The main job, and the ledger, with another allocator of PyTorch's."""
        self.needs_gpu()
        name = setting.split(":")[-1]
        both = {"PYTORCH_CUDA_ALLOC_CONF": setting}
        track, rescue = Worker(self, f"track-{name}", KOILA_MODE="track", **both), Worker(self, f"rescue-{name}", KOILA_MODE="rescue", **both)
        try:
            figures = self.exact("gpt", "float32", track, rescue)
            if ledger:
                figures.update(self.judge_ledger(track("ledger")))
            return figures
        finally:
            track.close()
            rescue.close()

    def graphs(self):
        self.needs_gpu()
        plain, koila = self.plain()("graph"), self.rescue()("graph")
        if plain != koila:
            raise Failed("captured and replayed, the step gives other numbers under koila", {"plain": plain, "koila": koila})
        return {"replays": len(plain["losses"]), "last_loss": plain["losses"][-1]}

    def cupti(self):
        self.needs_gpu()
        asking = Worker(self, "cupti", KOILA_MODE="track", KOILA_CUPTI="1", KOILA_REPORT=str(self.work / "cupti.json"))
        asking("train", model="gpt", precision="float32", steps=3)
        asking.close()
        said = [line for line in asking.log.read_text().splitlines() if "KOILA_CUPTI" in line]
        if said:
            raise Failed(said[0])
        notes = [note for note in json.loads((self.work / "cupti.json").read_text())["notes"] if note.startswith("by CUPTI")]
        if not notes or "nothing was reported" in notes[0]:
            raise Failed(notes[0] if notes else "the report has no note of CUPTI's")
        return {"note": notes[0]}

    def error_texts(self):
        self.needs_gpu()
        found = self.plain()("error_texts")
        figures = dict(found["texts"])
        if not found["works"]:
            raise Failed("the device does not work on after an out-of-memory", figures)
        if "CUDA out of memory. Tried to allocate" not in figures["device"] or "CUDA error: out of memory" not in figures["pinned"]:
            raise Failed("PyTorch says it in other words than torchglue/oom/oom.cc has", figures)
        return figures

    def run(self):
        self.part("facts", self.facts)
        for model in MODELS:
            self.part(f"rescue {model} float32", self.exact, model, "float32")
        self.part("ledger", self.ledger)
        self.part("expandable segments", self.allocator, "expandable_segments:True", True)
        self.part("cudaMallocAsync", self.allocator, "backend:cudaMallocAsync", False)
        self.part("CUDA graphs", self.graphs)
        for model in MODELS:
            self.part(f"rescue {model} bfloat16", self.exact, model, "bfloat16")
        for model in ("gpt", "cnn"):
            self.part(f"rescue {model} float16", self.exact, model, "float16")
        for model in MODELS:
            self.part(f"steady {model}", self.steady, model, "float32")
        self.part("steady gpt bfloat16", self.steady, "gpt", "bfloat16")
        for model in ("gpt", "cnn"):
            self.part(f"overhead {model}", self.overhead, model, "float32")
        self.part("error texts", self.error_texts)
        self.part("CUPTI", self.cupti)

    def close(self):
        for worker in self.workers.values():
            worker.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: small models under a CPU budget, to try the check itself")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write everything there")
    parser.add_argument("--only", action="append", metavar="WORD", help="only the parts with that word in their name; may be given again")
    parser.add_argument("--rounds", type=int, default=9, help="of a pair of timings (%(default)s)")
    parser.add_argument("--seconds", type=float, default=400, help="after which what is left is skipped (%(default)s)")
    parser.add_argument("--library", type=Path, default=HERE.parents[1] / "build" / "lib" / "libkoila.so", help="the preload")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the processes' logs")
    args = parser.parse_args()
    check = Check(args)
    began = time.monotonic()
    try:
        check.run()
    finally:
        check.close()
        result = {"device": args.device, "seconds": round(time.monotonic() - began, 1), "rows": check.rows}
        if args.json:
            args.json.write_text(json.dumps(result, indent=2) + "\n")
        if args.keep:
            print(f"logs: {check.work}")
        else:
            shutil.rmtree(check.work, ignore_errors=True)
    count = {status: sum(row["status"] == status for row in check.rows) for status in ("ok", "failed", "skipped")}
    print(", ".join(f"{n} {status}" for status, n in count.items()))
    sys.exit(1 if count["failed"] or not count["ok"] else 0)


if __name__ == "__main__":
    main()
