"""`pip install .`, and the source distribution."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from packages import ROOT, TRAIN, Environment, dynamic_section, run, tree

ADAPTER = ROOT / "build" / "lib" / "libkoila_torch.so"


def test_a_source_distribution_holds_what_is_committed(packages):
    committed = run("git", "ls-tree", "-r", "--name-only", "HEAD", cwd=packages.sources).split()
    expected = {name for name in committed if name != ".gitattributes" and not name.startswith(".ci/")}
    with tarfile.open(packages.sdist) as archive:
        assert {member.name.split("/", 1)[1] for member in archive.getmembers()} == expected | {"PKG-INFO"}


def test_a_wheel_is_the_package_and_its_script(packages):
    with zipfile.ZipFile(packages.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("METADATA"))
        licences = {name.split("/licenses/", 1)[1]: wheel.read(name) for name in wheel.namelist() if "/licenses/" in name}
    assert names == {"koila/__init__.py", "koila/__main__.py", "koila/adapters.py", "koila/attach.py", "koila/live.py", "koila/bin/koila", "koila/lib/libkoila.so"} | {
        f"koila/{header.relative_to(ROOT)}" for header in (ROOT / "include" / "koila").rglob("*.h")}
    assert "Requires-Dist" not in metadata, "pip would bring a torch that koila was not built for"
    assert "License-Expression: MIT\n" in metadata
    assert licences == {name: (ROOT / name).read_bytes() for name in ("LICENSE", "third_party/uplot/LICENSE")}


def test_install_and_uninstall_leave_nothing(packages, tmp_path):
    fresh = Environment(tmp_path / "venv")
    before = tree(fresh.folder)
    fresh.pip("install", "--no-index", "--no-deps", packages.wheel)

    version = fresh.run(fresh.command, "--version")
    assert version.split()[0] == "koila"
    assert fresh.run(fresh.python, "-m", "koila", "--version") == version
    where = "import koila; print(koila.__version__, koila.library(), koila.include())"
    library = fresh.packages / "koila" / "lib" / "libkoila.so"
    assert fresh.run(fresh.python, "-c", where).split() == [version.split()[1], str(library), str(fresh.packages / "koila" / "include")]
    loaded = "import ctypes; koila = ctypes.CDLL(None); koila.koila_version.restype = ctypes.c_char_p; print(koila.koila_version().decode())"
    assert fresh.run(fresh.python, "-c", loaded, LD_PRELOAD=str(library)).strip() == version.split()[1]
    assert not [entry for entry in dynamic_section(library) if entry[0] in ("RPATH", "RUNPATH")]
    for file in (library, fresh.packages / "koila" / "bin" / "koila"):
        assert ".symtab" not in fresh.run("readelf", "-SW", file), "symbols are most of the size"

    fresh.pip("uninstall", "-y", "libkoila")
    # Python's own, of the packages that were imported meanwhile.
    assert {k: v for k, v in tree(fresh.folder).items() if "__pycache__" not in k} == before
    assert not (fresh.packages / "koila").exists()


def check_training(fresh, tmp_path):
    """A script that knows nothing of koila is rescued under the installed command, with the repository out of sight."""
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(TRAIN)
    for command in ([fresh.command], [fresh.python, "-m", "koila"]):
        report.unlink(missing_ok=True)
        said = fresh.run(*command, "run", "--cpu-memory", "14MiB", "--report", report, "--", fresh.python, script)
        assert "trained" in said
        found = json.loads(report.read_text())
        assert found["rescues"] > 0 and not found["refusals"], said
    assert "rescue" in fresh.run(fresh.command, "report", report)


@pytest.mark.skipif(not ADAPTER.exists(), reason="build/lib/libkoila_torch.so is not built (scripts/setup)")
def test_a_script_is_rescued(packages, tmp_path):
    """With the adapter of build/ in its place: the same file as pip would install, less the symbols."""
    fresh = Environment(tmp_path / "venv", torch=True)
    fresh.pip("install", "--no-index", "--no-deps", packages.wheel)
    for name in ("libkoila_torch.so", "libkoila_torch.version"):
        shutil.copy(ADAPTER.with_name(name), fresh.packages / "koila" / "lib")
    check_training(fresh, tmp_path)


@pytest.mark.skipif(not ADAPTER.exists(), reason="build/lib/libkoila_torch.so is not built (scripts/setup)")
def test_the_adapter_names_no_folder_of_the_machine_that_built_it():
    section = dynamic_section(ADAPTER)
    assert not [entry for entry in section if entry[0] in ("RPATH", "RUNPATH")]
    assert not [value for tag, value in section if tag == "NEEDED" and "/" in value]


def meson_setup(packages, tmp_path, python, *options):
    """Configures as pip does, for the package of that Python."""
    native = tmp_path / "python.ini"
    native.write_text(f"[binaries]\npython = '{python}'\n")
    return run(sys.executable, "-m", "mesonbuild.mesonmain", "setup", tmp_path / "build", packages.unpacked, "-Dpython_package=true", "-Dtests=disabled",
               f"--native-file={native}", *options, cwd=tmp_path, ok=False)


def test_without_torch_the_build_says_so(packages, tmp_path):
    """Neither the torch of .venv nor of any other Python is taken instead."""
    fresh = Environment(tmp_path / "venv")
    said = meson_setup(packages, tmp_path, fresh.python)
    assert f"ERROR: Problem encountered: koila is built for the torch that it will run with, and {fresh.python} has none." in said
    assert "-Csetup-args=-Dtorch_python=PYTHON" in said


def test_a_torch_for_cuda_needs_the_headers(packages, tmp_path):
    """Or else the adapter would be blind to the memory that this torch is used for."""
    fresh = Environment(tmp_path / "venv")
    (fresh.packages / "torch").mkdir()
    (fresh.packages / "torch" / "__init__.py").write_text(
        "__version__ = '2.13.0'\nclass version:\n    cuda = '13.0'\nclass _C:\n    _GLIBCXX_USE_CXX11_ABI = True\n")
    toolkit = tmp_path / "toolkit"
    said = meson_setup(packages, tmp_path, fresh.python, f"-Dtoolkit_path={toolkit}")
    assert f"torch 2.13.0 is for CUDA 13.0, and there is no cuda_runtime_api.h that compiles in {toolkit}/include" in said
    assert "-Dcuda=disabled" in said
    # NVIDIA's wheels beside torch do as well as the toolkit.
    headers = fresh.packages / "nvidia" / "cu13" / "include"
    headers.mkdir(parents=True)
    (headers / "cuda_runtime_api.h").write_text("")
    assert "is for CUDA" not in meson_setup(packages, tmp_path, fresh.python, f"-Dtoolkit_path={toolkit}", "--wipe")


def test_an_isolated_build_sees_the_torch_of_the_environment(tmp_path):
    """pip runs an isolated build by the environment's Python, and hides its packages by a sitecustomize in PYTHONPATH."""
    (tmp_path / "sitecustomize.py").write_text("import site, sys\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n")
    hidden = subprocess.run([sys.executable, "-c", "import torch"], env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert "No module named 'torch'" in hidden.stderr
    facts = subprocess.run([sys.executable, ROOT / "scripts" / "lib" / "torch_facts.py"], env=os.environ | {"PYTHONPATH": str(tmp_path)},
                           capture_output=True, text=True)
    import torch
    assert facts.stdout.split("\n")[0] == torch.__version__, facts.stderr


@pytest.mark.full  # compiles for minutes
def test_pip_builds_for_the_torch_of_the_environment(packages, tmp_path):
    """All of it, and pip's build isolation: needs an index for meson-python."""
    fresh = Environment(tmp_path / "venv", torch=True)
    before = tree(fresh.folder)
    fresh.pip("install", "--no-cache-dir", "-v", packages.sdist)
    fresh.run(fresh.python, "-c", "import koila, torch; assert koila.torch_version() == torch.__version__, koila.torch_version()")
    check_training(fresh, tmp_path)
    fresh.pip("uninstall", "-y", "libkoila")
    assert {k: v for k, v in tree(fresh.folder).items() if "__pycache__" not in k} == before
