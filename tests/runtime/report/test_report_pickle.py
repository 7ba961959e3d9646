"""The snapshot, read by PyTorch's own code, and held to what its viewer relies upon."""

import functools
import pickle
import pickletools
import subprocess
import sys

import pytest
from report_files import SAMPLES, samples
from torch.cuda import _memory_viz

MI = 1 << 20
# What the unpickler of torch/utils/viz/MemoryViz.js knows.
OPCODES_OF_THE_VIEWER = set(
    "APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME LONG1 LONG_BINGET MARK MEMOIZE PROTO SETITEMS SHORT_BINUNICODE STOP TUPLE2 "
    "APPEND NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE TUPLE1 TUPLE3 LONG_BINPUT LIST DICT SETITEM".split()
)


@functools.cache
def snapshot(name: str) -> dict:
    return pickle.loads((samples() / f"{name}.pickle").read_bytes())


def blocks(found: dict, device: int) -> list[dict]:
    return [b for s in found["segments"] if s["device"] == device for b in s["blocks"] if b["state"] == "active_allocated"]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_viewer_can_read_it(name: str) -> None:
    codes = [code.name for code, _, _ in pickletools.genops((samples() / f"{name}.pickle").read_bytes())]
    assert set(codes) <= OPCODES_OF_THE_VIEWER
    # It spreads what is between a mark and APPENDS over the arguments of one call.
    longest = opened = 0
    for code in codes:
        opened = 0 if code in ("MARK", "APPENDS", "SETITEMS") else opened + 1
        longest = max(longest, opened)
    assert longest < 50_000


@pytest.mark.parametrize("name", SAMPLES)
def test_pytorchs_own_commands(name: str, capsys: pytest.CaptureFixture) -> None:
    text = lambda lines: lines  # in place of the script that is downloaded to draw a flame graph
    found = snapshot(name)
    assert "total_allocated" in _memory_viz.segsum(found)
    trace = _memory_viz.trace(found)
    assert trace.count("Device ") == sum(bool(events) for events in found["device_traces"])
    for draw in (_memory_viz.memory, _memory_viz.segments):
        lines = draw(found, text).splitlines()
        drawn = sum(int(line.rsplit(" ", 1)[1]) for line in lines if ";active_allocated;" in line)
        assert drawn == sum(b["size"] for d in range(len(found["device_traces"])) for b in blocks(found, d))
    assert _memory_viz.compare(found["segments"], found["segments"], text) == ""
    assert "only_before;" in _memory_viz.compare(found["segments"], [], text) or not found["segments"]
    capsys.readouterr()
    assert "MemoryViz.js" in _memory_viz.segment_plot(found)
    assert "MemoryViz.js" in _memory_viz.trace_plot(found, plot_segments=True)
    assert "MemoryViz.js" in _memory_viz.trace_plot(pickle.loads((samples() / f"{name}.pickle").read_bytes()), filter_freed=True)  # changes it
    assert "free_completed without" not in capsys.readouterr().out


def test_from_the_command_line(tmp_path) -> None:
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", samples() / "traced.pickle", "-o", tmp_path / "plot.html"]
    subprocess.run(command, check=True)
    assert (tmp_path / "plot.html").stat().st_size > 1000


@pytest.mark.parametrize("name", SAMPLES)
def test_it_hangs_together(name: str) -> None:
    """Each free has its alloc, each event lies in a segment at which the viewer can draw it, and sizes add up."""
    found = snapshot(name)
    for device, events in enumerate(found["device_traces"]):
        segments = [s for s in found["segments"] if s["device"] == device]
        alive, requested, time = {}, set(), 0
        for event in events:
            assert event["time_us"] >= time
            time = event["time_us"]
            if event["action"] in ("alloc", "free_requested", "free_completed"):
                assert any(s["address"] <= event["addr"] and event["addr"] + event["size"] <= s["address"] + s["total_size"] for s in segments)
            if event["action"] == "alloc":
                assert event["addr"] not in alive
                alive[event["addr"]] = event["size"]
            elif event["action"] == "free_requested":
                assert alive[event["addr"]] == event["size"]
                requested.add(event["addr"])
            elif event["action"] == "free_completed":
                requested.remove(event["addr"])
                alive.pop(event["addr"])
        assert not requested
        at_end = {b["address"]: b["size"] for b in blocks(found, device)}
        assert alive.items() <= at_end.items()
        if any("category" in e for e in events):
            assert "unknown" in {e.get("category") for e in events}, "the viewer's legend"
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == address
                address += block["size"]
            assert address == segment["address"] + segment["total_size"]
            assert segment["allocated_size"] == sum(b["size"] for b in segment["blocks"] if b["state"] == "active_allocated")


def test_the_cpu_comes_after_the_last_device() -> None:
    assert len(snapshot("empty")["device_traces"]) == 1
    found = snapshot("traced")
    assert len(found["device_traces"]) == 3
    assert sum(b["size"] for b in blocks(found, 0)) == 2 * MI
    assert sum(b["size"] for b in blocks(found, 2)) == 4096 + 300 + 512 + 32 * MI


def test_what_was_made_before_the_trace_stands_at_its_begin() -> None:
    events = snapshot("traced")["device_traces"][2]
    assert [(e["action"], e.get("size")) for e in events[:3]] == [("alloc", 1024), ("free_requested", 1024), ("free_completed", 1024)]
    assert not any(e["action"] == "alloc" and e["size"] == 4096 for e in events), "alive before and after: in the segments alone"


def test_a_missed_free_is_made_up() -> None:
    events = [e for e in snapshot("traced")["device_traces"][2] if e.get("size") in (256, 512)]
    assert [(e["action"], e["size"]) for e in events] == [("alloc", 256), ("free_requested", 256), ("free_completed", 256), ("alloc", 512)]


def test_frames_are_the_operator_the_program_and_the_category() -> None:
    (block,) = (b for b in blocks(snapshot("traced"), 2) if b["size"] == 300)
    assert [(f["filename"], f["line"], f["name"]) for f in block["frames"]] == [
        ("operator", 0, "aten::mm"),
        ("train.py", 31, "forward"),
        ("lib/a b.py", 60, "<module>"),
        ("category", 0, "gradients"),
    ]


def test_names_that_are_no_text_are_repaired() -> None:
    (block,) = (b for b in blocks(snapshot("traced"), 2) if b["size"] == 32 * MI)
    assert block["frames"][0]["name"] == "aten::\ufffd" and block["frames"][1]["name"] == "no place"


def test_out_of_memory_stands_where_it_happened() -> None:
    events = snapshot("traced")["device_traces"][2]
    (oom,) = (e for e in events if e["action"] == "oom")
    before, after = events[events.index(oom) - 1], events[events.index(oom) + 1]
    assert before["time_us"] <= oom["time_us"] == 1760000000250000 + 750000 < after["time_us"]
    assert (oom["size"], oom["device_free"], oom["frames"][0]["name"]) == (32 * MI, 10 * MI, "aten::linear")


def test_a_long_trace_is_of_a_size_that_the_viewer_takes() -> None:
    assert len(snapshot("longest_trace")["device_traces"][2]) > 100_000
    assert (samples() / "longest_trace.pickle").stat().st_size < 20e6
