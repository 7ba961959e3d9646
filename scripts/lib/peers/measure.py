"""What is measured of each alternative under each budget."""

import contextlib
import hashlib
import math
from pathlib import Path

import alternatives
from alternatives import WAYS
from figures import relative_error

SHARES = (0.7, 0.5, 0.3, 0.15)
AT = 0.5  # the share at which the largest batch is looked for
MOST = 16  # times the full batch: where it stops looking
PATIENCE = 8  # seconds that two epochs of it may take
FACTORS = (1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16)  # of the curve
CURVE_WAYS = ("checkpointing", "by_hand", "koila01", "koila")
ROWS = {"cnn": 256, "gpt": 64, "bert": 64, "clip": 128, "vae": 256, "resnet": 64, "transformer": 16}  # as works.py has them, which imports torch


class Measurement:
    def __init__(self, servers, results, rounds):
        self.servers, self.results, self.rounds = servers, results, rounds
        self.references = {}

    def run(self, work, way, name=None, **more):
        chosen = WAYS[way]
        return self.servers.run(work, chosen.function(work), name or chosen.environment, chosen.imports, **more)

    # -- plain -----------------------------------------------------------------------------------------------------------------

    def peak(self, work, dtype="float32"):
        """Plain's peak of some steps, in bytes."""
        return self.results.get(f"peak/{work}/{dtype}", lambda: self.run(work, "plain", "track", dtype=dtype, epochs=1))["peak"]

    def budget(self, work, share, dtype="float32"):
        return int(self.peak(work, dtype) * share)

    def plain(self, work, block, which):
        """Plain on enough memory, in a process without any preload, at the beginning (0) and the end (1) of what is measured beside it."""
        return self.results.get(f"plain/{work}/{block}/{which}", lambda: self.run(work, "plain", "plain"))

    def reference(self, work, dtype):
        """Gradients and statistics of the full batch, by name."""
        if (work, dtype) not in self.references:
            batches = 3 if work == "vae" else 1
            self.references[work, dtype] = self.run(work, "plain", "plain", dtype=dtype, exact=True, batches=batches, arrays=True)[1]
        return self.references[work, dtype]

    # -- under a budget --------------------------------------------------------------------------------------------------------

    def micro(self, work, way, share):
        """Rows of a micro-batch for ways that want to be told: halved, in a process each, until it trains. Returns (rows or None, seconds of what failed)."""
        if not WAYS[way].micro:
            return None, 0.0

        def search():
            rows, lost = ROWS[work] // 2, 0.0
            while rows:
                result = self.run(work, way, budget=self.budget(work, share), micro=rows, epochs=1)
                if result["outcome"] == "ok":
                    return {"rows": rows, "lost": lost}
                lost += result["seconds"]
                if result["outcome"] != "memory":
                    break
                rows //= 2
            return {"rows": None, "lost": lost, "outcome": result["outcome"]}
        found = self.results.get(f"micro/{work}/{way}/{share}", search)
        return found["rows"], found["lost"]

    def speed(self, work, way, share, round_number):
        micro, lost = self.micro(work, way, share)
        if WAYS[way].micro and micro is None:
            return self.results.known[f"micro/{work}/{way}/{share}"] | {"seconds": lost}
        result = self.results.get(f"speed/{work}/{way}/{share}/{round_number}", lambda: self.run(work, way, budget=self.budget(work, share), micro=micro))
        return result | {"micro": micro, "lost": lost}

    def errors(self, work, way, share):
        """The errors of the first gradient (of the last batch too where that is ragged) and of running statistics, against the full batch; share None: with no budget."""
        micro, _ = self.micro(work, way, share or AT)
        if WAYS[way].micro and micro is None or share and self.speed(work, way, share, 0)["outcome"] != "ok":
            return {}
        dtype = "float32" if WAYS[way].single else "float64"
        return self.results.get(f"errors/{work}/{way}/{share}", lambda: self.compare(work, way, dtype, share and self.budget(work, share, dtype), micro))

    def compare(self, work, way, dtype, budget, micro):
        wanted = self.reference(work, dtype)
        batches = 1 + max(int(name[1:].split("_")[0]) for name in wanted if name.startswith("g"))
        for rows in [micro] if micro is None else [micro >> i for i in range(micro.bit_length())]:
            result, found = self.run(work, way, budget=budget, micro=rows, dtype=dtype, exact=True, batches=batches, arrays=True)
            if result["outcome"] != "memory":
                break
        if not found:
            return {"outcome": result["outcome"]}
        steps = [[name for name in sorted(wanted) if name.startswith(f"g{step}_")] for step in range(batches)]
        gradients = [relative_error([found[name] for name in names if name in found], [wanted[name] for name in names]) for names in steps]
        statistics = [name for name in sorted(wanted) if name.startswith("s_")]
        error = relative_error([found[name] for name in statistics if name in found], [wanted[name] for name in statistics]) if statistics else None
        return {"outcome": result["outcome"], "gradient": gradients[0], "ragged": gradients[-1], "statistics": error, "batch": result["batch"]}

    def largest(self, work, way):
        """The largest batch that trains under the budget AT, over the full batch; at most MOST."""
        micro, _ = self.micro(work, way, AT)
        return self.results.get(f"largest/{work}/{way}", lambda: {"factor": self.search(work, way, micro)})["factor"]

    def search(self, work, way, micro):
        if WAYS[way].micro and micro is None:
            return 0.0
        if WAYS[way].chooses:
            first = self.speed(work, way, AT, 0)
            return first["batch"] / ROWS[work] if first["outcome"] == "ok" else 0.0

        def trains(factor):
            rows = max(1, round(ROWS[work] * factor))
            if work == "bert" and micro:
                rows = max(micro, rows // micro * micro)
            return self.run(work, way, budget=self.budget(work, AT), rows=rows, micro=micro, epochs=1, timeout=PATIENCE)["outcome"] == "ok"
        return largest_factor(trains)

    # -- the curve -------------------------------------------------------------------------------------------------------------

    def curve(self, work, way, factor, round_number):
        """Steps of `factor` times as many rows as fit plainly, where exactly those fit."""
        budget = self.peak(work)
        rows = round(ROWS[work] * factor)
        micro = ROWS[work] // 2 if WAYS[way].micro else None
        return self.results.get(f"curve/{work}/{way}/{factor}/{round_number}", lambda: self.run(work, way, budget=budget, rows=rows, micro=micro, seconds=3.0))

    # -- all of it -------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def between_plain_runs(self, work, block):
        """What is run in it is held against a plain run before, and one after."""
        self.plain(work, block, 0)
        yield
        self.plain(work, block, 1)

    def table(self, works, ways, progress):
        for round_number in range(self.rounds):
            for work in works:
                for share in SHARES:
                    progress(f"round {round_number + 1} of {self.rounds}: {work} at {share:.0%}")
                    with self.between_plain_runs(work, f"{share}/{round_number}"):
                        for way in ways:
                            if WAYS[way].does(work):
                                self.speed(work, way, share, round_number)
        for work in works:
            for way in ways:
                if WAYS[way].does(work):
                    progress(f"{work}: errors and largest batch, {way}")
                    for share in (*SHARES, None):
                        self.errors(work, way, share)
                    self.largest(work, way)

    def curves(self, works, progress):
        for round_number in range(self.rounds):
            for work in works:
                for factor in FACTORS:
                    progress(f"curve, round {round_number + 1} of {self.rounds}: {work} x {factor}")
                    with self.between_plain_runs(work, f"{factor}/{round_number}"):
                        for way in CURVE_WAYS:
                            self.curve(work, way, factor, round_number)


def largest_factor(trains, most=MOST, rounds=5):
    """The largest factor from 1 / most to most with which `trains` says yes, to within a sixteenth part of that range's logarithm; 0: none does."""
    if trains(most):
        return float(most)
    low, high = (0.0, math.log2(most)) if trains(1) else (-math.log2(most), 0.0)
    if low < 0 and not trains(1 / most):
        return 0.0
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if trains(2 ** middle) else (low, middle)
    return 2 ** low


def fingerprint(library):
    """Of what results depend on: the two libraries, the works, the ways, and how they are measured."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256(" ".join(alternatives.PACKAGES + alternatives.ALONE).encode())
    for path in [library, library.with_name("libkoila_torch.so"), *(here / name for name in ("works.py", "ways.py", "job.py", "figures.py", "server.py", "pager.c"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
