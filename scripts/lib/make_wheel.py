"""Makes one wheel of koila for several releases of torch: see scripts/wheel."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from wheel_file import facts_of, with_adapters

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build-wheel"
# What an adapter is made of.
SOURCES = ("runtime", "torchglue", "include", "lib", "third_party", "meson.build", "meson.options")
# Of torch's wheel, what the adapter is compiled and linked with.
PARTS = ("torch/include/", "torch/version.py", "torch/lib/libc10.so", "torch/lib/libtorch_cpu.so")
# Every build of a release has these, for a CPU or for CUDA; the rest is the C and C++ libraries'.
MAY_NEED = {"libtorch_cpu.so", "libc10.so", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def say(text):
    print(f"koila: {text}", file=sys.stderr, flush=True)


def run(*command, log):
    """What it said is in `log`, and its end is shown where it failed."""
    with open(log, "a") as out:
        out.write(f"$ {' '.join(map(str, command))}\n")
        out.flush()
        done = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "error:" in line] or lines[-20:]
        sys.exit("\n".join([*errors[:40], f"koila: {command[0]} failed; {log} has all of it"]))


def stamp():
    """Of the sources' contents."""
    digest = hashlib.sha256()
    for part in SOURCES:
        for path in sorted((ROOT / part).rglob("*")) if (ROOT / part).is_dir() else [ROOT / part]:
            if path.is_file():
                digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def fetch(release, folder, log):
    """The parts of torch that are needed, in folder/torch."""
    with tempfile.TemporaryDirectory(dir=WORK) as stage:
        # Three equal signs: the version without a local part; `==2.13.0` is met by 2.13.0+cpu as well. No cache: pip would keep half a gigabyte, twice.
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--only-binary", ":all:", "--dest", stage,
            f"torch==={release}", log=log)
        with zipfile.ZipFile(next(Path(stage).glob("torch-*.whl"))) as wheel:
            for entry in wheel.infolist():
                if entry.filename.startswith(PARTS):
                    path = wheel.extract(entry, folder)
                    # The file's own time: ninja would compile all of it again for a torch that was only fetched again.
                    made = time.mktime((*entry.date_time, 0, 0, -1))
                    os.utime(path, (made, made))


def check(adapter):
    """An adapter serves every build of its release, and names no folder of this machine."""
    facts = facts_of(adapter)
    if more := set(facts.needed) - MAY_NEED:
        sys.exit(f"koila: {adapter} needs {', '.join(sorted(more))}, which not every build of its torch has")
    if facts.run_path:
        sys.exit(f"koila: {adapter} looks for libraries in {facts.run_path}")


def build_adapter(release, torch, jobs, log):
    build = WORK / f"torch-{release}" / "build"
    meson = [sys.executable, "-m", "mesonbuild.mesonmain", "setup"]
    again = ["--reconfigure", "--clearcache"] if (build / "build.ninja").exists() else []
    # As pip has it (pyproject.toml), which leaves out symbols and does not go on without CUDA's headers.
    run(*meson, *again, build, "-Dpython_package=true", "-Dtests=disabled", "-Dbuildtype=debugoptimized", f"-Dtorch_path={torch}", log=log)
    run("ninja", "-C", build, f"-j{jobs}", *os.environ.get("NINJAFLAGS", "").split(), "lib/libkoila_torch.so", log=log)
    check(build / "lib" / "libkoila_torch.so")
    return build / "lib"


def release_in(folder):
    """Of the torch package in the folder."""
    facts = subprocess.run([sys.executable, ROOT / "scripts" / "lib" / "torch_facts.py", folder], stdout=subprocess.PIPE, text=True)
    if facts.returncode != 0:
        sys.exit(facts.returncode)
    version, _, abi = facts.stdout.splitlines()[:3]
    if abi == "0":
        sys.exit(f"koila: torch {version} is built with the std::string of before C++11, and other builds of its release may not be: no adapter serves both "
                 "(-Dtorch_python= builds one for it alone)")
    return version.split("+")[0]


def adapter_of(wanted, jobs, wheel_stamp):
    """The folder of the adapter for a release, or for the torch package in a folder; built where it is not there."""
    given = Path(wanted).resolve() if "/" in wanted else None
    release = release_in(given) if given else wanted
    folder = WORK / f"torch-{release}"
    done, log = folder / "adapter", folder / "log"
    if done.exists() and (done / "stamp").read_text() == wheel_stamp:
        return done
    folder.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    begin = time.monotonic()
    if not given:
        say(f"fetching torch {release}")
        fetch(release, folder / "site", log)
        release_in(folder / "site" / "torch")
    say(f"building the adapter for torch {release}; {log} grows")
    built = build_adapter(release, given or folder / "site" / "torch", jobs, log)
    fresh = folder / "adapter.partial"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for name in ("libkoila_torch.so", "libkoila_torch.version"):
        shutil.copy(built / name, fresh)
    (fresh / "stamp").write_text(wheel_stamp)
    shutil.rmtree(done, ignore_errors=True)
    fresh.rename(done)
    shutil.rmtree(folder / "site", ignore_errors=True)
    say(f"torch {release}: {(done / 'libkoila_torch.so').stat().st_size / 2 ** 20:.1f} MiB, {time.monotonic() - begin:.0f} s")
    return done


def base_wheel(folder, jobs):
    """All but the adapters, as pip makes it."""
    run(sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "--no-index", "--config-settings=setup-args=-Dglue=false",
        f"--config-settings=build-dir={ROOT / 'build-base'}", f"--config-settings=compile-args=-j{jobs}", "-w", folder, ROOT, log=WORK / "base.log")
    return next(Path(folder).glob("libkoila-*.whl"))


def main():
    parser = argparse.ArgumentParser(prog="scripts/wheel", description="Makes one wheel of koila for several releases of torch.")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--adapters", action="store_true", help="no wheel: the adapters in build-wheel/")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the wheel's folder (dist/)")
    parser.add_argument("torch", nargs="+", help="a release, such as 2.13.0, or the folder of a torch package")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    of_sources = stamp()
    adapters = [adapter_of(wanted, options.jobs, of_sources) for wanted in options.torch]
    if options.adapters:
        return
    with tempfile.TemporaryDirectory(dir=WORK) as stage:
        made = with_adapters(base_wheel(stage, options.jobs), {adapter.parent.name: adapter for adapter in adapters}, options.out)
    say(f"{made.relative_to(Path.cwd()) if made.is_relative_to(Path.cwd()) else made}: {made.stat().st_size / 2 ** 20:.1f} MiB")


if __name__ == "__main__":
    main()
