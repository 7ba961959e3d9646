"""Notebooks in a real Jupyter kernel: examples/notebook.ipynb with `import koila` and without, the kernel of `koila jupyter`, and cells that fail or are interrupted."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest import mock

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]
KOILA = ROOT / "build" / "tool" / "koila"
NOTEBOOK = nbformat.read(ROOT / "examples" / "notebook.ipynb", 4)


def execute(cells, tmp_path, kernel="python3", **more):
    """The outputs of each cell; a text is what was printed, whether to stdout or to stderr."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
    environment |= {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "JUPYTER_DATA_DIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")} | more
    with mock.patch.dict(os.environ, environment, clear=True):
        nbclient.NotebookClient(book, timeout=300, allow_errors=True, kernel_name=kernel, resources={"metadata": {"path": str(tmp_path)}}).execute()
    return [cell.outputs for cell in book.cells]


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")


def errors(outputs):
    return [output.ename + ": " + output.evalue for output in outputs if output.output_type == "error"]


def code_cells():
    return [cell.source for cell in NOTEBOOK.cells if cell.cell_type == "code"]


def test_the_example_trains_and_shows_its_report(tmp_path):
    outputs = execute(code_cells(), tmp_path)
    assert not [error for output in outputs for error in errors(output)]
    enough = [cell.replace("with too_small_a_machine(150):", "if True:") for cell in code_cells() if "koila" not in cell]
    losses = printed(outputs[-2])
    assert losses.startswith("0 4.77") and losses == printed(execute(enough, tmp_path)[-1])
    (shown,) = outputs[-1]
    assert shown.data["text/html"].startswith("<iframe srcdoc=") and "'rescues': 0" not in shown.data["text/plain"]


def test_the_example_dies_without_its_first_cell(tmp_path):
    cells = code_cells()
    assert cells.pop(0) == "import koila"
    outputs = execute(cells[:-1], tmp_path)
    assert "DefaultCPUAllocator: can't allocate memory" in errors(outputs[-1])[0]


def test_a_kernel_that_koila_installs(tmp_path):
    installed = subprocess.run([KOILA, "jupyter", "--python", sys.executable, "--microbatch", "7", "--report", "off"], env=os.environ | {"JUPYTER_DATA_DIR": str(tmp_path)},
                               capture_output=True, text=True, timeout=60)
    assert installed.returncode == 0 and "Python under koila" in installed.stdout, installed.stderr
    spec = json.loads((tmp_path / "kernels" / "koila" / "kernel.json").read_text())
    assert spec["language"] == "python" and spec["argv"][-2:] == ["-f", "{connection_file}"]
    cells = ["import torch, ctypes\nctypes.CDLL(None).koila_version\ntorch.nn.Linear(4, 4)(torch.ones(21, 4)).sum().backward()", "import koila\nprint(koila.report()['regions_total']['count'])"]
    outputs = execute(cells, tmp_path, kernel="koila")
    assert not errors(outputs[0]) and printed(outputs[1]) == "1\n", outputs


def test_what_cannot_be_installed_is_said(tmp_path):
    def jupyter(*words):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where there is a `python`, which Debian has not
        done = subprocess.run([KOILA, "jupyter", "--prefix", tmp_path, *words], env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        return done.stderr

    folder = tmp_path / "share" / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["python"], "display_name": "mine", "language": "python"}')
    assert "no kernel that koila has made" in jupyter("--name", "python3")
    assert "mine" in (folder / "kernel.json").read_text()
    assert "letters, digits" in jupyter("--name", "../x")
    assert "is no Python" in jupyter("--python", "/bin/ls")
    assert "--cpu-memory lots" in jupyter("--cpu-memory", "lots")


def test_cells_that_fail_leave_nothing(tmp_path):
    """A cell that raises between forward and backward, one that is interrupted within micro-batches, one that runs out for good: what comes after is the plain run's."""
    begin = """
        import signal
        import torch
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        data = torch.randn(2048, 64)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def loss_of(rows): return model(rows).square().mean()
        def step():
            optimizer.zero_grad()
            loss = loss_of(data)
            loss.backward()
            optimizer.step()
            return loss.item()
        first = step()"""
    failing = [
        "loss = loss_of(data)\n1 / 0",
        """
        def interrupt(module, arguments, output): signal.raise_signal(signal.SIGINT)
        hook = model[2].register_forward_hook(interrupt)
        loss_of(data).backward()""",
        "hook.remove()\ntorch.ones(10**7)",
    ]
    end = "optimizer.zero_grad()\nprint(repr([first, step(), step(), [p.grad.abs().sum().item() for p in model.parameters()]]))"
    expected = execute([begin, "hook = None", end], tmp_path)
    found = execute([begin, "import koila\nkoila.set_budget(koila.memory().live + 10 * 2**20)", *failing, end], tmp_path, KOILA_LADDER="0,1")
    assert [errors(outputs)[0].split(":")[0] for outputs in found[2:5]] == ["ZeroDivisionError", "KeyboardInterrupt", "OutOfMemoryError"]
    first, then = eval(printed(expected[-1])), eval(printed(found[-1]))
    assert then[:3] == pytest.approx(first[:3], rel=1e-12) and then[3] == pytest.approx(first[3], rel=1e-9)
