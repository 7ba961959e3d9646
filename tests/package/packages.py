"""Makes packages out of the working tree, and looks at what installing them leaves."""

import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).parents[2]

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x, y = torch.randn(4096, 64), torch.randint(10, (4096,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print("trained")
"""


def environment(folder, **more):
    """Without koila, with a `meson` in PATH that is the tests' own (.venv/bin has none where the user's Python has Meson), and with nothing of the
    repository."""
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    meson = commands / "meson"
    meson.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mesonbuild.mesonmain "$@"\n')
    meson.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k not in ("LD_PRELOAD", "DESTDIR", "PYTHONPATH")}
    # As in scripts/lib/common.sh: where ccache is, most was compiled for build/ already.
    return kept | {"PATH": f"{commands}:{kept['PATH']}", "CCACHE_NOHASHDIR": "1", "OMP_NUM_THREADS": "1"} | more


def run(*command, cwd, ok=True, **more):
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment(pathlib.Path(cwd), **more), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert not ok or done.returncode == 0, f"{shlex.join(map(str, command))}:\n{done.stdout}"
    return done.stdout


def copy_of_sources(folder):
    """The working tree as git sees it, committed: a source distribution holds what is committed."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git = ["git", "-c", "user.name=koila", "-c", "user.email=koila@localhost", "-c", "commit.gpgsign=false"]
    for step in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "The working tree"]):
        subprocess.run([*git, *step], cwd=folder, check=True)


def tree(folder):
    """Every path below, with what it holds."""
    def content(path):
        if path.is_symlink():
            return os.readlink(path)
        return "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    return {str(path.relative_to(folder)): content(path) for path in sorted(pathlib.Path(folder).rglob("*"))}


class Environment:
    """A fresh Python environment, with the torch of this one where it is wanted. It has no pip of its own: this one's installs into it."""

    def __init__(self, folder, torch=False):
        self.folder, self.cwd = folder, folder.parent
        run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=self.cwd)
        self.python = folder / "bin" / "python"
        self.command = folder / "bin" / "koila"
        self.packages = pathlib.Path(run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))", cwd=self.cwd).strip())
        if torch:
            import torch as found
            paths = {str(pathlib.Path(found.__file__).parents[1]), sysconfig.get_path("purelib")}
            (self.packages / "torch_of_the_tests.pth").write_text("\n".join(sorted(paths)) + "\n")

    def pip(self, *arguments, **more):
        return run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python, *arguments, cwd=self.cwd, **more)

    def run(self, *command, **more):
        return run(*command, cwd=self.cwd, **more)


def dynamic_section(library):
    """[(tag, value)] such as ("NEEDED", "libc.so.6")."""
    found = []
    for line in subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout.splitlines():
        if "(" in line and "[" in line:
            found.append((line.split("(")[1].split(")")[0], line.split("[")[1].split("]")[0]))
    return found
