"""The environment of the alternatives, the processes that fork for each of their runs, and the file that results are kept in."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import alternatives

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from bench import ROOT, environment  # noqa: E402

CACHE = ROOT / ".cache" / "peers"
PYTHON = CACHE / "venv" / "bin" / "python"


def set_up():
    """Makes the virtual environment and the pager, where they are not there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    stamp, wanted = CACHE / "venv" / "stamp", " ".join(alternatives.PACKAGES + alternatives.ALONE)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"setting up {CACHE / 'venv'} with pip: {wanted} (a minute)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", CACHE / "venv"], check=True)
        for names in (alternatives.PACKAGES, ("--no-deps", *alternatives.ALONE)):
            subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *names], check=True)
        # Its modules import each other by the name that it has in its repository.
        (next((CACHE / "venv" / "lib").glob("python*")) / "site-packages" / "grad_cache").symlink_to("gradcache")
        stamp.write_text(wanted)
    pager, source = CACHE / "pager.so", HERE / "pager.c"
    if not pager.exists() or pager.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", pager], check=True)


class Servers:
    """One process for each environment and set of imports; each run is a fork of it."""

    def __init__(self):
        self.processes, self.folder = {}, tempfile.TemporaryDirectory(prefix="koila-peers-")

    def server(self, name, imports):
        key = name, imports
        if key not in self.processes:
            settings = alternatives.ENVIRONMENTS[name]
            variables = environment(**(settings if settings is not None else {})) if name in ("plain", "pager") else environment(**{"KOILA_LOG": "error", **settings})
            variables.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", PYTHONDONTWRITEBYTECODE="1", KOILA_RECORD="off")
            if name == "pager":
                variables["LD_PRELOAD"] = str(CACHE / "pager.so")
            process = subprocess.Popen([str(PYTHON), "-u", str(HERE / "server.py"), *imports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                       env=variables)
            assert process.stdout.readline() == "ready\n", f"no process under {name} with {imports}"
            self.processes[key] = process
        return self.processes[key]

    def run(self, work, way, name, imports=(), budget=None, arrays=False, timeout=60, **job):
        """What a run came to, and, where they are wanted, its gradients and statistics by name."""
        out = os.path.join(self.folder.name, "run")
        for leftover in (out, out + ".npz"):
            Path(leftover).unlink(missing_ok=True)
        request = {"work": work, "way": way, "budget": budget, "paged": name == "pager", "job": job, "out": out, "timeout": timeout}
        process = self.server(name, (*imports, "transformers") if work == "bert" else imports)
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        status = json.loads(process.stdout.readline())["status"]
        if status is None:
            result = {"outcome": f"more than {timeout} s", "seconds": timeout}
        elif status:
            text = Path(out + ".log").read_text(errors="replace").strip().splitlines()
            result = {"outcome": f"ended with status {status}: {(text or [''])[-1]}"[:200], "seconds": 0}
        else:
            result = json.loads(Path(out).read_text())
        return (result, load(out + ".npz")) if arrays else result

    def stop(self):
        for process in self.processes.values():
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
        self.folder.cleanup()


def load(path):
    """The arrays of a file in NumPy's format; {} where the file does not exist or cannot be read."""
    import numpy as np
    if not os.path.exists(path):
        return {}
    try:
        with np.load(path) as file:
            return dict(file)
    except (OSError, zipfile.BadZipFile):
        return {}


def whole_lines(path):
    """What the file's lines hold; the last one may have been cut off when its writer was killed."""
    lines = path.read_text().splitlines() if path.exists() else []
    entries = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            entries.append(json.loads(line))
    return entries


class Results:
    """What was measured, by its name, in a file that a later call goes on with. A file of other sources or another library is not gone on with."""

    def __init__(self, path, header):
        self.path, self.header, self.known = path, header, {}
        entries = whole_lines(path)
        if entries and entries[0].get("fingerprint") == header["fingerprint"]:
            self.header = entries[0]
            self.known = {entry["name"]: entry["result"] for entry in entries[1:]}
        path.write_text("".join(json.dumps(entry) + "\n" for entry in (entries if self.header is not header else [header])))

    def get(self, name, measure):
        if name not in self.known:
            self.known[name] = measure()
            with self.path.open("a") as file:
                file.write(json.dumps({"name": name, "result": self.known[name]}) + "\n")
        return self.known[name]
