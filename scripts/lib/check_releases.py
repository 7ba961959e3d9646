"""One wheel of koila beside several releases of torch: see scripts/releases."""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARE = 0.6  # of plain's peak

PEAK = "import json, sys; print(json.load(open(sys.argv[1]))['devices']['cpu']['peak_bytes'])"
# All that the example has saved: the greatest difference, as a part of the greatest entry, is to be rounding's.
DIFFERENCE = """
import sys, torch
a, b = (torch.load(path, weights_only=False) for path in sys.argv[1:])
def flat(v, at=""):
    if isinstance(v, torch.Tensor): yield at, v.double()
    elif isinstance(v, dict):
        for key in v: yield from flat(v[key], f"{at}/{key}")
    elif isinstance(v, (list, tuple)):
        for i, part in enumerate(v): yield from flat(part, f"{at}/{i}")
    elif isinstance(v, float): yield at, torch.tensor(v).double()
a, b = dict(flat(a)), dict(flat(b))
assert a.keys() == b.keys() and a
print(max(((a[k] - b[k]).abs().max() / a[k].abs().max().clamp(min=1e-3)).item() for k in a if a[k].numel()))
"""
# A program that is started without the preload, and imports koila first.
BY_IMPORT = "import sys, runpy, koila; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


class Failed(Exception):
    pass


def run(*command, **more):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KOILA_") and key != "LD_PRELOAD"}
    environment |= {"OMP_NUM_THREADS": "1", "KOILA_RECORD": "off"} | more
    done = subprocess.run([str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed((done.stderr or done.stdout).strip().splitlines()[-1:] or ["no word"])
    return done.stdout.strip()


def check(wheel, release, steps, folder):
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", f"torch==={release}", "numpy", wheel)
    program = [ROOT / "examples" / "char_gpt.py", "--steps", steps]
    koila = folder / "venv" / "bin" / "koila"
    run(koila, "run", "--quiet", "--mode", "track", "--report", folder / "track.json", "--", python, *program, "--save", folder / "plain")
    budget = int(int(run(python, "-c", PEAK, folder / "track.json")) * SHARE)
    said = {}
    for name, command, more in (
        ("koila run", [koila, "run", "--quiet", "--report", folder / "run.json", "--ladder", "0,1", "--cpu-memory", f"{budget}B", "--", python, *program], {}),
        ("import koila", [python, "-c", BY_IMPORT, *program], {"KOILA_CPU_MEMORY": f"{budget}B", "KOILA_LADDER": "0,1", "KOILA_REPORT": str(folder / "run.json"), "KOILA_LOG": "error"}),
    ):
        try:
            (folder / "saved").unlink(missing_ok=True)
            run(*command, "--save", folder / "saved", **more)
            difference = float(run(python, "-c", DIFFERENCE, folder / "plain", folder / "saved"))
            said[name] = f"rescued, {difference:.1e} from plain" if difference < 1e-3 else f"WRONG, {difference:.1e} from plain"
        except Failed as why:
            said[name] = f"failed: {why}"
    return said


def main():
    parser = argparse.ArgumentParser(prog="scripts/releases", description="Runs an example beside each release of torch, rescued at 0.6 of its peak, and holds it against the plain run.")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("torch", nargs="+", help="a release, such as 2.13.0")
    options = parser.parse_args()
    bad = False
    print("| torch | koila run | import koila |\n|---|---|---|", flush=True)
    for release in options.torch:
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = check(options.wheel.resolve(), release, options.steps, Path(folder))
            except Failed as why:
                said = dict.fromkeys(("koila run", "import koila"), f"not tried: {why}")
        bad |= any(not text.startswith("rescued") for text in said.values())
        print(f"| {release} | {said['koila run']} | {said['import koila']} |", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
