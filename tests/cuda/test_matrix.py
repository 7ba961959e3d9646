"""However a process comes by a CUDA runtime, it behaves as without koila; and where koila can see it, the figures are right."""

import dataclasses

import pytest
from programs import KI, MI, SIMULATION, Done, extension, koila, plain, program


@dataclasses.dataclass
class Row:
    command: list
    library: str | None = None  # who is named for the memory; None: koila sees nothing of it
    rounds: int = 1
    leak: int = MI

    def run(self, runner, **variables: str) -> Done:
        return runner(*self.command, **variables)


LOADER = program("loader")
ROWS = {
    "linked": Row([program("linked")], "program"),
    "linked with a renamed runtime": Row([program("linked_renamed")], "program"),
    "extension, local": Row([LOADER, "local", extension("extension")], "extension"),
    "extension, global": Row([LOADER, "global", extension("extension")], "extension"),
    "extension with a renamed runtime": Row([LOADER, "local", extension("extension_renamed")], "extension_renamed"),
    "extension, runtime in the global scope": Row(
        [LOADER, "after", SIMULATION / "plain" / "libcudart.so.13", extension("extension_unlinked")], "extension_unlinked"
    ),
    "extension, runtime by a renamed file": Row(
        [LOADER, "after", SIMULATION / "renamed" / "libcudart-1a2b3c4d.so.13", extension("extension_unlinked")], "extension_unlinked"
    ),
    "loaded, unloaded and loaded again": Row([LOADER, "again", extension("extension")], "extension", rounds=2, leak=0),
    "static runtime": Row([program("linked_static")]),
    "extension with RTLD_DEEPBIND": Row([LOADER, "deepbind", extension("extension")]),
}


@pytest.fixture(params=ROWS, ids=lambda name: name.replace(" ", "_"))
def row(request: pytest.FixtureRequest) -> Row:
    return ROWS[request.param]


@pytest.mark.parametrize("mode", ["track", "rescue", "lazy", "off"])
def test_behaves_as_without(row: Row, mode: str) -> None:
    without, with_koila = row.run(plain), row.run(koila, KOILA_MODE=mode)
    assert without.returncode == 0 and without.stdout.count("cudaMalloc(") >= 8, without.stderr
    assert (with_koila.returncode, with_koila.stdout) == (0, without.stdout)
    assert all(line.startswith("koila: ") for line in with_koila.stderr.splitlines()), with_koila.stderr
    assert (with_koila.report is not None) == (row.library is not None and mode != "off")


# By kind, what the workload asks for: allocations, and the most bytes alive at once.
EXPECTED = {
    "cuda:0": {"device": (8, 3 * MI + 512), "array": (4, 86016), "pool": (6, 2 * MI), "virtual": (3, 6 * MI)},
    "pinned": {"pinned": (6, 128 * KI)},
    "managed": {"managed": (2, 5 * MI)},
}


def test_figures_are_right(row: Row) -> None:
    done = row.run(koila, WORKLOAD_COMPARE="1")
    if row.library is None:
        assert done.report is None and "mismatch" in done.stderr
        return
    assert "mismatch" not in done.stderr
    for device, kinds in EXPECTED.items():
        sources = done.sources(device)
        assert set(sources) == {(kind, row.library) for kind in kinds}
        for kind, (allocations, peak) in kinds.items():
            source = sources[kind, row.library]
            leaked = int(kind == "device" and row.leak > 0)
            expected = row.rounds * allocations + leaked
            assert (kind, source["allocations"], source["frees"]) == (kind, expected, expected - leaked)
            assert (kind, source["peak_bytes"], source["live_bytes"]) == (kind, peak, row.leak if kind == "device" else 0)
        figures = done.device(device)
        for name in ("allocations", "frees", "live_bytes"):
            assert figures[name] == sum(source[name] for source in sources.values()), (device, name)
        assert sum(size["count"] for size in figures["sizes"]) == figures["allocations"]
    assert done.device()["peak_bytes"] == int(done.stdout.split("peak ")[-1].split()[0]), "the simulation's own"
    # Two of cudaMalloc, one of cudaMallocPitch and two of the driver are for more than there is.
    assert done.device()["failed_allocations"] == 5 * row.rounds
    assert done.device()["untracked_bytes"] == 0 and done.device()["used_bytes"] == 0
    assert {"from_bytes": 512, "count": row.rounds} in done.device()["sizes"]


class TestTwoRuntimes:
    COMMAND = [LOADER, "two", extension("extension"), extension("extension_renamed")]

    def test_each_caller_gets_its_own(self) -> None:
        without, with_koila = plain(*self.COMMAND), koila(*self.COMMAND)
        assert "last errors: 0, 2" in without.stdout, without.stdout
        assert (with_koila.returncode, with_koila.stdout) == (0, without.stdout)
        device = with_koila.sources()["device", "extension"], with_koila.sources()["device", "extension_renamed"]
        # A process has one driver: of the simulation's two, the second's functions are handed out as they are.
        assert [(d["live_bytes"], d["allocations"]) for d in device] == [(MI, 10), (MI, 10 - 3)]
        assert with_koila.device()["live_bytes"] == 2 * MI

    def test_a_budgets_error_is_left_in_the_right_one(self) -> None:
        done = koila(*self.COMMAND, KOILA_DEVICE_MEMORY="16MiB", SIM_CAPACITY="64GiB")
        assert "take too much: 2\nlast errors: 0, 2\ntake too much: 2\nlast errors: 2, 0\n" in done.stdout


def test_an_absent_runtime_is_a_device_that_is_absent() -> None:
    """A program that asks for cudaMalloc by name finds koila's, and learns by the error what it would have learnt by its absence."""
    assert plain(LOADER, "probe").stdout == "no CUDA\n"
    done = koila(LOADER, "probe")
    assert (done.returncode, done.stdout, done.stderr, done.report) == (0, "no CUDA: 100, 100\n", "", None)


def test_no_device_is_said_by_the_runtime() -> None:
    without, with_koila = (run(program("linked"), SIM_DEVICES="0") for run in (plain, koila))
    assert "= 100, last 100" in without.stdout
    assert with_koila.returncode == without.returncode == 0

    def lines(done: Done) -> list[str]:
        # The driver knows no last error; where its functions fail for want of a device, koila's question for the device leaves one.
        return [line for line in done.stdout.splitlines() if not line.startswith("cuMem")]

    assert lines(with_koila) == lines(without)


def test_a_reset_gives_everything_back() -> None:
    without, with_koila = plain(program("linked"), "reset"), koila(program("linked"), "reset")
    assert with_koila.stdout == without.stdout == f"reset: 999, used {2 * MI}\nreset: 0, used 0\n"
    figures = with_koila.device()
    assert (figures["live_bytes"], figures["peak_bytes"], figures["allocations"], figures["frees"]) == (2 * MI, 2 * MI, 3, 2)


def test_what_a_hidden_runtime_takes_is_untracked() -> None:
    """A library that the preload cannot see, beside a program that it sees: on one device, the difference is said."""
    done = koila(program("linked"), "beside", extension("extension"))
    assert done.returncode == 0
    figures = done.device()
    assert (figures["used_bytes"], figures["untracked_bytes"], figures["live_bytes"]) == (8 * MI, 5 * MI, 0)
    assert any(line == "cuda:0: peak 3.0 MiB, 0 B live at the end, 5.0 MiB untracked" for line in done.koila_lines())
