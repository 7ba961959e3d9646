"""examples/cuda/fill.c, a plain C program: what koila's report says of it, to the letter."""

import json

import jsonschema
import pytest
from programs import MI, ROOT, koila, plain, program

OUTPUT = f"32 TiB: out of memory\nsum {28 * 4 * MI}\n"


@pytest.fixture(scope="module")
def done():
    return koila(program("fill"), KOILA_MODE="track")


def test_the_program_runs_as_without(done) -> None:
    assert plain(program("fill")).stdout == done.stdout == OUTPUT
    assert done.returncode == 0


def test_text(done) -> None:
    assert done.stderr.splitlines() == [
        f"koila: a program without PyTorch; mode track; pid {done.report['pid']}",
        "koila:   cuda:0: peak 33.0 MiB, 1.0 MiB live at the end, 1 allocation failed",
        "koila:   cuda:0 by source: program 1.0 MiB (peak 33.0 MiB)",
        "koila:   pinned: peak 4.0 MiB, 0 B live at the end",
        "koila:   pinned by source: program 0 B (peak 4.0 MiB)",
    ]


def test_json(done) -> None:
    categories = ("other", "parameters", "gradients", "optimizer_state", "inputs", "activations", "workspace")
    no_tensors = {
        "peak_seconds": 0,
        "peak_step": 0,
        "live_by_category": dict.fromkeys(categories, 0),
        "peak_by_category": dict.fromkeys(categories, 0),
        "holders": [],
        "timeline": done.report["devices"]["cuda:0"]["timeline"],
    }
    nothing_outside = {"outside_bytes": 0, "outside_peak_bytes": 0, "outside_written_bytes": 0}
    assert done.report["devices"] == {
        "pinned": {
            "peak_bytes": 4 * MI,
            "live_bytes": 0,
            "budget_bytes": 0,
            "allocations": 1,
            "frees": 1,
            **nothing_outside,
            "failed_allocations": 0,
            "sizes": [{"from_bytes": 4 * MI, "count": 1}],
        },
        "cuda:0": {
            "peak_bytes": 33 * MI,
            "live_bytes": MI,
            "budget_bytes": 0,
            "allocations": 9,
            "frees": 8,
            **nothing_outside,
            **no_tensors,
            "failed_allocations": 1,
            "tensor_bytes": 0,
            "tensor_peak_bytes": 0,
            "used_bytes": 33 * MI,  # asked when the allocation failed
            "untracked_bytes": 0,
            "sizes": [{"from_bytes": MI, "count": 1}, {"from_bytes": 4 * MI, "count": 8}],
        },
    }
    common = {"library": "program", "live_bytes": 0, "allocations": 1, "frees": 1}
    assert done.report["sources"] == [
        common | {"device": "pinned", "kind": "pinned", "peak_bytes": 4 * MI},
        common | {"device": "cuda:0", "kind": "device", "live_bytes": MI, "peak_bytes": 33 * MI, "allocations": 9, "frees": 8},
    ]


def test_json_follows_its_schema(done) -> None:
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    assert [f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(done.report)] == []


def test_on_a_smaller_device() -> None:
    """The budget ends it where a GPU of 16 MiB would."""
    done = koila(program("fill"), KOILA_DEVICE_MEMORY="16MiB")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "a piece: out of memory"
    assert "koila:   cuda:0: peak 13.0 MiB of 16.0 MiB, 13.0 MiB live at the end, 1 allocation failed" in done.stderr


def test_nothing_is_said_when_told_so() -> None:
    assert koila(program("fill"), KOILA_REPORT="off").stderr == ""
