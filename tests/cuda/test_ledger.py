"""The account of device memory is exact at any time, whatever a program does. The simulation says what is true."""

import json
import pathlib

import pytest
from programs import MI, koila, plain, program
from selection import only


class TestStress:
    """Eight threads that allocate and free at random, of all kinds, each other's too."""

    @staticmethod
    def check(done) -> None:
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("0 checkpoints of 10 wrong; live 0, 0, 0; really 0"), done.stdout + done.stderr
        for name, device in done.report["devices"].items():
            assert (name, device["live_bytes"], device["frees"]) == (name, 0, device["allocations"])
            for field in ("allocations", "frees"):
                assert device[field] == sum(source[field] for source in done.sources(name).values())
            assert sum(size["count"] for size in device["sizes"]) == device["allocations"]

    def test_a_million_calls(self, scenario) -> None:
        done = scenario("stress", 1_000_000, 8)
        self.check(done)
        assert sum(d["allocations"] + d["frees"] for d in done.report["devices"].values()) > 900_000

    def test_addresses_used_again_before_the_free_returns(self, scenario) -> None:
        self.check(scenario("stress", 30_000, 8, SIM_DELAY="cudaFree:50,cudaFreeAsync:50,cudaFreeHost:50"))

    def test_addresses_never_used_again(self, scenario) -> None:
        self.check(scenario("stress", 100_000, 8, SIM_REUSE="0"))

    @pytest.mark.parametrize("limit", [{"KOILA_DEVICE_MEMORY": "64MiB"}, {"SIM_CAPACITY": "64MiB"}], ids=["budget", "capacity"])
    def test_allocations_that_fail(self, scenario, limit: dict) -> None:
        done = scenario("stress", 200_000, 8, **limit)
        self.check(done)
        assert "refused some" in done.stdout
        assert done.device()["failed_allocations"] > 0
        # Without a budget, what a thread gives back counts until its call returns, when CUDA may have given it to another already: 1 MiB a thread.
        assert done.device()["peak_bytes"] <= (64 * MI if "KOILA_DEVICE_MEMORY" in limit else (64 + 8) * MI)

    def test_calls_that_cuda_refuses(self, scenario) -> None:
        self.check(scenario("stress", 200_000, 8, SIM_FAIL="cudaMalloc:100:200:2,cudaMallocAsync:7:300:999,cudaMallocHost:10:50:2"))


@pytest.mark.parametrize("seed", range(3))
def test_peak_is_exact(scenario, seed: int) -> None:
    done = scenario("peak", seed)
    assert done.stdout.endswith("failures some\n") and done.returncode == 0, done.stdout
    assert done.device()["peak_bytes"] == int(done.stdout.split()[1].rstrip(","))


def test_a_failed_allocation_does_not_raise_the_peak(scenario) -> None:
    done = scenario("failure")
    assert done.stdout == plain(program("scenarios"), "failure").stdout == "last error 2, then 0\n"
    figures = done.device()
    assert (figures["peak_bytes"], figures["live_bytes"], figures["failed_allocations"]) == (3 * MI, 0, 2)


class TestFork:
    def test_the_child_starts_anew(self, scenario, tmp_path: pathlib.Path) -> None:
        done = scenario("fork", tmp_path / "child.json")
        assert done.stdout.splitlines() == [
            f"parent: {3 * MI}",
            "child: 0",
            f"child's own: {5 * MI}",
            f"child, without its parent's: {5 * MI}",
            "child: 0",
            f"parent: {3 * MI}, child ended with 0",
        ]
        assert (done.device()["live_bytes"], done.device()["allocations"]) == (0, 2)
        child = json.loads((tmp_path / "child.json").read_text())
        assert child["devices"]["cuda:0"]["peak_bytes"] == 5 * MI
        assert [(s["library"], s["allocations"], s["frees"]) for s in child["sources"]] == [("program", 1, 1)]

    def test_with_a_budget(self, scenario, tmp_path: pathlib.Path) -> None:
        done = scenario("fork", tmp_path / "child.json", KOILA_DEVICE_MEMORY="6MiB")
        assert f"child's own: {5 * MI}" in done.stdout, "its parent's bytes are not on its account"

    def test_while_threads_hold_the_locks(self, scenario) -> None:
        assert scenario("fork_in_threads").stdout == "0 children went wrong\n"


@pytest.mark.parametrize("attempt", only(range(5), range(20)))
def test_exit_while_threads_allocate_and_free(scenario, attempt: int) -> None:
    done = scenario("busy_exit")
    assert (done.returncode, done.stdout) == (0, "free after the report: 0\n")
    assert done.report is not None and done.device()["peak_bytes"] >= MI


def test_a_report_of_two_devices_by_number() -> None:
    done = koila(program("scenarios"), "info", 2, SIM_DEVICES="2")
    assert [(name, d["live_bytes"], d["used_bytes"]) for name, d in done.report["devices"].items()] == [
        ("cuda:0", 3 * MI, 3 * MI),
        ("cuda:1", 3 * MI, 3 * MI),
    ]
