"""One wheel for several releases of torch: `scripts/wheel`."""

import base64
import hashlib
import json
import subprocess
import sys
import zipfile

import pytest
import torch
from packages import ROOT, Environment, run, tree
from test_python_package import ADAPTER, check_training

sys.path.append(str(ROOT / "scripts" / "lib"))
import make_wheel  # noqa: E402
import wheel_file  # noqa: E402

RELEASE = torch.__version__.split("+")[0]


def adapter(folder, version, *options):
    """One in name: a library, and the file that says what it is for."""
    folder.mkdir(parents=True)
    empty = folder / "empty.c"
    empty.touch()
    subprocess.run(["gcc", "-shared", empty, "-o", folder / "libkoila_torch.so", *options], check=True)
    (folder / "libkoila_torch.version").write_text(version + "\n")
    return folder


def with_releases(packages, tmp_path, *versions):
    """The wheel of the sources, with an adapter in name for each version; and an environment that has it and this torch."""
    adapters = {f"torch-{version}": adapter(tmp_path / "adapters" / version, version) for version in versions}
    wheel = wheel_file.with_adapters(packages.wheel, adapters, tmp_path / "dist")
    fresh = Environment(tmp_path / "venv", torch=True)
    before = tree(fresh.folder)
    fresh.pip("install", "--no-index", "--no-deps", wheel)
    return wheel, fresh, before


def test_the_wheel_is_pips_with_adapters_in_it(packages, tmp_path):
    wheel, fresh, before = with_releases(packages, tmp_path, "2.0.1", "2.99.0")
    with zipfile.ZipFile(packages.wheel) as base, zipfile.ZipFile(wheel) as made:
        more = {f"koila/lib/torch-{version}/libkoila_torch.{end}" for version in ("2.0.1", "2.99.0") for end in ("so", "version")}
        assert set(made.namelist()) == set(base.namelist()) | more
        command = next(entry for entry in made.infolist() if entry.filename == "koila/bin/koila")
        assert command.external_attr >> 16 & 0o111, "the command can be run"
        tags = [line for line in made.read(next(name for name in made.namelist() if name.endswith("/WHEEL"))).decode().splitlines() if line.startswith("Tag: ")]
        record = made.read(next(name for name in made.namelist() if name.endswith("/RECORD"))).decode().splitlines()
        digests = {name: base64.urlsafe_b64encode(hashlib.sha256(made.read(name)).digest()).decode().rstrip("=") for name in made.namelist()}
    listed = {name: digest.removeprefix("sha256=") for name, digest, _ in (line.rsplit(",", 2) for line in record)}
    assert listed == {name: "" if name.endswith("/RECORD") else digest for name, digest in digests.items()}
    assert tags == [f"Tag: {wheel.stem.split('-', 2)[2]}"] and tags[0].startswith("Tag: py3-none-manylinux_2_")
    assert fresh.run(fresh.command, "--version").splitlines()[1].endswith("adapter for torch 2.0.1 and 2.99.0")
    fresh.pip("uninstall", "-y", "libkoila")
    assert {k: v for k, v in tree(fresh.folder).items() if "__pycache__" not in k} == before


def test_which_adapter_would_be_taken(packages, tmp_path):
    _, fresh, _ = with_releases(packages, tmp_path, "2.0.1", RELEASE, "2.99.0")
    assert fresh.run(fresh.python, "-c", "import koila; print(koila.torch_version())", KOILA_MODE="off") == RELEASE + "\n"
    said = fresh.run(fresh.command, "doctor", "--", fresh.python, "-c", "1", ok=False)
    assert f"whose adapters are for torch 2.0.1, {RELEASE} and 2.99.0" in said
    assert f"which takes the adapter {fresh.packages}/koila/lib/torch-{RELEASE}/libkoila_torch.so" in said


def test_why_no_adapter_would_be_taken(packages, tmp_path):
    _, fresh, _ = with_releases(packages, tmp_path, "2.0.1", "2.99.0")
    question = "import koila; print(koila.torch_version())"
    said = fresh.run(fresh.python, "-c", question, KOILA_MODE="off")
    assert f"RuntimeWarning: this Python has torch {torch.__version__}, and koila was built for torch 2.0.1 and 2.99.0 (docs/install.md)" in said
    assert said.splitlines()[-1] == "None"
    said = fresh.run(fresh.command, "doctor", "--json", "--", fresh.python, "-c", "1", ok=False)
    (problem,) = [finding for finding in json.loads(said)["findings"] if finding["verdict"] == "problem"]
    assert "and the adapters are for torch 2.0.1 and 2.99.0: koila would stay out" in problem["what"]
    said = fresh.run(fresh.command, "run", "--", fresh.python, "-c", "import torch; print('ran')")
    assert f"this process runs torch {torch.__version__}, koila was built for torch 2.0.1 and 2.99.0;" in said and said.splitlines()[-1] == "ran"
    for name in (fresh.packages / "koila" / "lib").glob("torch-*/*.version"):
        name.unlink()
    assert f"there is no adapter for torch in {fresh.packages}/koila/lib" in fresh.run(fresh.python, "-c", question, KOILA_MODE="off")


@pytest.mark.skipif(not ADAPTER.exists(), reason="build/lib/libkoila_torch.so is not built (scripts/setup)")
def test_a_script_is_rescued_by_one_adapter_of_several(packages, tmp_path):
    make_wheel.check(ADAPTER)
    adapters = {"torch-2.0.1": adapter(tmp_path / "2.0.1", "2.0.1"), f"torch-{RELEASE}": ADAPTER.parent}
    wheel = wheel_file.with_adapters(packages.wheel, adapters, tmp_path / "dist")
    fresh = Environment(tmp_path / "venv", torch=True)
    fresh.pip("install", "--no-index", "--no-deps", wheel)
    check_training(fresh, tmp_path)


def test_an_adapter_that_needs_cuda_is_refused(tmp_path):
    """It would load with CUDA's builds of torch only."""
    cudart = tmp_path / "libcudart.so.13"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", cudart, "-Wl,-soname,libcudart.so.13"], check=True)
    bad = adapter(tmp_path / "bad", RELEASE, "-Wl,--no-as-needed", cudart)
    with pytest.raises(SystemExit, match="libcudart.so.13, which not every build"):
        make_wheel.check(bad / "libkoila_torch.so")
    make_wheel.check(adapter(tmp_path / "good", RELEASE) / "libkoila_torch.so")
    with pytest.raises(SystemExit, match="looks for libraries in /opt/torch"):
        make_wheel.check(adapter(tmp_path / "led", RELEASE, "-Wl,-rpath,/opt/torch") / "libkoila_torch.so")


def test_the_platform_is_the_one_that_has_what_the_libraries_ask_for(monkeypatch):
    facts = {"c": wheel_file.Facts([], "", (2, 34), (0,)), "c++": wheel_file.Facts([], "", (2, 17), (3, 4, 30)), "new": wheel_file.Facts([], "", (2, 38), (3, 4, 21))}
    monkeypatch.setattr(wheel_file, "facts_of", facts.get)
    assert wheel_file.platform_tag(["c"]).startswith("manylinux_2_34_")
    assert wheel_file.platform_tag(["c", "c++"]).startswith("manylinux_2_35_")
    assert wheel_file.platform_tag(["c", "c++", "new"]).startswith("manylinux_2_38_")


def test_facts_of_a_folder_are_those_of_the_torch_in_it(tmp_path):
    """Read from its files, as scripts/wheel does it, and told by torch itself."""
    facts = ROOT / "scripts" / "lib" / "torch_facts.py"
    folder = torch.__path__[0]
    assert run(sys.executable, facts, folder, cwd=tmp_path) == run(sys.executable, facts, cwd=tmp_path)


def torch_package(folder, version, string):
    """What is read of one, with a function of that kind of std::string in it."""
    (folder / "lib").mkdir(parents=True)
    (folder / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = '12.4'\n")
    (folder / "lib" / "libc10.so").write_bytes(b"..." + string + b"...")
    return folder


def test_a_torch_whose_release_has_two_kinds_of_strings_is_refused(tmp_path):
    new = b"_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    assert make_wheel.release_in(torch_package(tmp_path / "new", "2.6.0+cpu", new)) == "2.6.0"
    with pytest.raises(SystemExit, match=r"torch 2\.6\.0\+cu124 is built with the std::string of before C\+\+11"):
        make_wheel.release_in(torch_package(tmp_path / "old", "2.6.0+cu124", b"_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"))
    with pytest.raises(SystemExit):
        make_wheel.release_in(torch_package(tmp_path / "none", "2.6.0", b""))


def test_a_folder_that_is_no_torch_is_said(tmp_path):
    said = run(sys.executable, ROOT / "scripts" / "lib" / "torch_facts.py", tmp_path, cwd=tmp_path, ok=False)
    assert said.startswith(f"{tmp_path} is no torch package: {tmp_path}/version.py is missing")
