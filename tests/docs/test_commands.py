"""Runs the commands of the pages for users: each block of code that is no other language's, in the order of the page, in one folder.

A line that ends in `# exits with N` must. A block below `<!-- not run: REASON -->` is left out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["cpp", "python", "places", "command", "report", "troubleshooting", "limits", "variables", "architecture"]

EXITS = re.compile(r"# exits with (\d+)\s*$")


def blocks(text):
    """The commands of each block of a page that is to be run."""
    found, fence, before = [], None, ""
    skipped = used = False  # a word that the next block is not to be run; and that block has begun
    for line in text.splitlines():
        if fence is not None:
            if line.startswith("```"):
                fence, used = None, True
            elif fence in ("", "sh") and not skipped:
                found[-1].append(line)
        elif line.startswith("```"):
            fence = line[3:].strip()
            skipped, used = skipped and not used, False
            if fence in ("", "sh") and not skipped:
                found.append([])
        elif line.startswith("    ") and line.strip():
            used = True
            if not skipped and not before.startswith("    "):
                if before.strip():
                    continue  # a list's line that goes on
                found.append([])
            if not skipped:
                found[-1].append(line[4:])
        elif line.strip():
            skipped, used = line.startswith("<!-- not run:"), False
        before = line
    return found


def script(lines):
    """A shell script that stops at the first line whose exit status is not the expected one."""
    joined = re.sub(r"\\\n", " ", "\n".join(lines)).splitlines()
    checked = ["set -u"]
    for line in joined:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        exits = EXITS.search(line)
        expected = int(exits[1]) if exits else 0
        checked.append(f"{line}\nkoila_status=$?; if [ $koila_status -ne {expected} ]; then echo \"exit status $koila_status, expected {expected}\" >&2; exit 99; fi")
    return "\n".join(checked)


@pytest.fixture
def scratch(tmp_path):
    for name in ("examples", "include", "build", "python", "scripts", "tests", ".venv", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs(page, scratch):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
    environment["PATH"] = os.pathsep.join([str(ROOT / "build" / "tool"), str(Path(sys.executable).parent), environment["PATH"]])
    environment["JUPYTER_DATA_DIR"] = str(scratch / "jupyter")  # no kernel is installed for the user who runs the tests
    found = list(blocks((ROOT / "docs" / f"{page}.md").read_text()))
    assert found, "a page of commands without one"
    for lines in found:
        done = subprocess.run(["bash", "-c", script(lines)], cwd=scratch, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, "\n".join([*lines, "", done.stdout[-2000:], done.stderr[-3000:]])


def test_the_first_page_runs_in_a_bare_shell(tmp_path):
    """From the clone on, in one shell that knows of nothing: no .venv, no koila in PATH, no variable."""
    scratch = tmp_path
    for entry in ROOT.iterdir():  # .cache too: scripts/setup keeps there what tells it that all is built
        (scratch / entry.name).symlink_to(entry)
    lines = [line for block in blocks((ROOT / "docs" / "start.md").read_text()) for line in block]
    assert lines[0] == "scripts/setup"
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(scratch), "TERM": "dumb"}
    assert "koila" not in subprocess.run(["bash", "-c", "command -v koila"], env=environment, capture_output=True, text=True).stdout
    done = subprocess.run(["bash", "-c", script(lines)], cwd=scratch, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, "\n".join([*lines, "", done.stdout[-2000:], done.stderr[-3000:]])
    assert "6 steps" in done.stderr or "3 steps, all rescued" in done.stderr, done.stderr[-3000:]


def test_finds_blocks_and_what_they_expect():
    page = "text\n\n    true\n    false   # exits with 1\n\n<!-- not run: needs a GPU -->\n\n    nvidia-smi\n\n```python\nprint()\n```\n\n```sh\ntrue\n```\n"
    assert list(blocks(page)) == [["true", "false   # exits with 1"], ["true"]]
    assert subprocess.run(["bash", "-c", script(["false  # exits with 1", "true"])]).returncode == 0
    assert subprocess.run(["bash", "-c", script(["true  # exits with 1"])], stderr=subprocess.DEVNULL).returncode == 99
    assert subprocess.run(["bash", "-c", script(["false", "true"])], stderr=subprocess.DEVNULL).returncode == 99
