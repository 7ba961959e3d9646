"""scripts/setup says what it installs, and where; what it installs has versions."""

import re
import subprocess
import sys

import pytest
from command import ROOT


def bash(script: str) -> subprocess.CompletedProcess[str]:
    head = "source scripts/lib/common.sh; source scripts/lib/packages.sh; is_there() { false; }; apt-get() { echo APT \"$@\" >&2; }; quietly() { \"$@\"; }; "
    return subprocess.run(["bash", "-c", head + script, "scripts/setup"], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_packages_are_named_before_they_are_installed() -> None:
    done = bash("EUID_IS=$EUID; install_packages")
    said, _, after = done.stderr.partition("APT")
    assert "ninja-build" in said
    if after:
        assert "into this system" in said and "--no-system" in said


def test_no_system_installs_none_outside_the_folder() -> None:
    done = bash("no_system=yes; install_packages")
    assert done.returncode != 0 and "APT" not in done.stderr
    assert "first install what is missing: sudo apt-get install -y" in done.stderr and "ninja-build" in done.stderr


def test_a_misspelt_option_is_said() -> None:
    done = subprocess.run([ROOT / "scripts" / "setup", "--test"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "no option --test" in done.stderr


def test_what_comes_by_pip_has_versions() -> None:
    requirements = [line for line in (ROOT / "tests" / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    here = [line for line in requirements if 'python_version >= "3.11"' in line and 'or' not in line.split(";")[1].split()]
    assert len(here) > 8 and all(re.match(r"[\w-]+==[\d.]+;", line) for line in here)
    names = {re.split(r"[=<>;]", line)[0] for line in requirements}
    assert len(requirements) == 2 * len(names) == 2 * len(here), "each once for the versions of Python that the pins are for, and once for others"
    constraints = dict(line.split("==") for line in (ROOT / "tests" / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    assert all(constraints[line.split("==")[0]] == line.split("==")[1].split(";")[0] for line in here)
    assert not {"torch", "torchvision"} & constraints.keys()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the pins are for Python 3.11")
def test_the_environment_is_what_the_pins_say() -> None:
    from importlib import metadata

    for line in (ROOT / "tests" / "constraints.txt").read_text().splitlines():
        if line.startswith(("pytest==", "meson==", "scikit-learn==")):
            name, version = line.split("==")
            assert metadata.version(name) == version
