"""A suite's source package and its Python environment, below .cache/suites. Each environment sees the packages of the project's own .venv, torch among them, and
has what the suite needs beside them."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "suites"


class Failed(Exception):
    pass


def quietly(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command[-4:]))}: {done.stdout.strip()[-600:]}")


def source(suite):
    """The folder of the unpacked source package; None for what comes with torch."""
    if not suite.version:
        return None
    folder = CACHE / "source" / f"{suite.name}-{suite.version}"
    if not folder.exists():
        packed = CACHE / "packed" / f"{suite.name}-{suite.version}"
        packed.mkdir(parents=True, exist_ok=True)
        # pip makes the package's metadata while it downloads, with what builds it in an environment of its own.
        quietly(sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", "-d", str(packed), f"{suite.name}=={suite.version}")
        archive = next(packed.glob("*.tar.gz"))
        half = folder.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        with tarfile.open(archive) as file:
            file.extractall(half, filter="data")
        (inside,) = half.iterdir()
        inside.rename(folder)
        half.rmdir()
    return folder


def interpreter(suite):
    """The Python of the suite's environment."""
    folder = CACHE / "environments" / (suite.name if suite.version else "torch")
    python = folder / "bin" / "python"
    stamp, wanted = folder / "koila-stamp", json.dumps([suite.version, suite.needs, suite.installed, sys.version])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    quietly(sys.executable, "-m", "venv", "--without-pip", str(folder))
    packages = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    # site.addsitedir, so that the path files of .venv count too.
    (packages / "koila_venv.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    wanted_packages = list(suite.needs)
    if suite.version and suite.installed:
        wanted_packages.append(str(source(suite)))
    if wanted_packages:
        quietly(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--ignore-installed", *wanted_packages)
    stamp.write_text(wanted)
    return python


def variables(suite):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KOILA_", "SUITES_")) and k not in ("LD_PRELOAD", "PYTHONPATH")}
    paths = [str(Path(__file__).parent)]
    if suite.version:
        environment["SUITES_SOURCE"] = str(source(suite))
        if not suite.installed:
            paths += [str(source(suite)), str(source(suite) / "src")]
    if suite.prepare:
        environment["SUITES_PREPARE"] = ",".join(suite.prepare)
    if suite.dtype:
        environment["SUITES_DTYPE"] = suite.dtype
    environment.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0", PYTHONPATH=":".join(paths), HF_HUB_OFFLINE="1",
                       TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="", SUITES_DROPOUT=suite.dropout, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", TQDM_DISABLE="1")
    environment.update(suite.environment)
    return environment
