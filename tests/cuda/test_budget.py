"""KOILA_DEVICE_MEMORY makes a device behave like a smaller one; KOILA_INJECT_OOM makes single allocations fail."""

import pytest
from programs import GI, KI, MI


class TestWhatTheDeviceSays:
    @pytest.mark.parametrize(
        ("budget", "expected"),
        [
            ("", ["8192 of 8192 MiB free, then 8189 of 8192", "8192 of 8192 MiB free, then 8189 of 8192"]),
            ("64MiB", ["64 of 64 MiB free, then 61 of 64"] * 2),
            ("1:64MiB", ["8192 of 8192 MiB free, then 8189 of 8192", "64 of 64 MiB free, then 61 of 64"]),
            ("0:32MiB, 1:64MiB", ["32 of 32 MiB free, then 29 of 32", "64 of 64 MiB free, then 61 of 64"]),
            ("50%", ["4096 of 4096 MiB free, then 4093 of 4096"] * 2),
            ("0:2MiB,25%", ["2 of 2 MiB free, then 2 of 2", "2048 of 2048 MiB free, then 2045 of 2048"]),
            ("1TiB", ["8192 of 8192 MiB free, then 8189 of 8192"] * 2),
        ],
    )
    def test_is_the_budget(self, scenario, budget: str, expected: list[str]) -> None:
        done = scenario("info", 2, SIM_DEVICES="2", KOILA_DEVICE_MEMORY=budget)
        assert done.stdout.splitlines() == expected

    def test_never_more_than_there_is_free(self, scenario) -> None:
        """A budget of all of it, when another library or process has some."""
        done = scenario("info", SIM_CAPACITY="2MiB", KOILA_DEVICE_MEMORY="100%")
        assert done.stdout == "2 of 2 MiB free, then 2 of 2\n"

    def test_the_report_names_it(self, scenario) -> None:
        done = scenario("fill", MI, KOILA_DEVICE_MEMORY="64MiB", KOILA_LOG="info")
        assert "budget for cuda:0: 64.0 MiB" in done.stderr
        assert any(line.startswith("cuda:0: peak 64.0 MiB of 64.0 MiB") for line in done.koila_lines())
        assert not any(line.startswith("next:") for line in done.koila_lines())


class TestExact:
    @pytest.mark.parametrize("budget", [64 * MI, 64 * MI - 1, 3 * KI + 7])
    def test_to_the_byte(self, scenario, budget: int) -> None:
        done = scenario("fill", MI, KOILA_DEVICE_MEMORY=f"{budget}B")
        assert done.stdout == f"got {budget}, last error 2\n"
        figures = done.device()
        assert (figures["live_bytes"], figures["peak_bytes"], figures["budget_bytes"]) == (budget, budget, budget)
        assert figures["failed_allocations"] > 0

    def test_under_eight_threads(self, scenario) -> None:
        budget = 3_000_001
        done = scenario("fill_in_threads", budget, KOILA_DEVICE_MEMORY=f"{budget}B")
        assert done.stdout == f"live {budget}, peak {budget}, never over\n"

    @pytest.mark.parametrize("device", [0, 1])
    def test_of_expandable_segments(self, scenario, device: int) -> None:
        """Through the driver's functions; the device is in the request, and not the current one."""
        done = scenario("segments", device, SIM_DEVICES="2", KOILA_DEVICE_MEMORY=f"{device}:13MiB")
        free = "1 of 13" if device == 0 else "8192 of 8192"
        assert done.stdout == f"6 segments, error 2, last error 0, current device {free} MiB free\n"
        figures = done.device(f"cuda:{device}")
        assert (figures["peak_bytes"], figures["live_bytes"], figures["failed_allocations"]) == (12 * MI, 0, 1)

    def test_other_kinds_have_none(self, scenario) -> None:
        """Page-locked and managed memory is not a device's."""
        done = scenario("stress", 50_000, 4, KOILA_DEVICE_MEMORY="1MiB")
        assert done.report["devices"]["pinned"]["peak_bytes"] > MI
        assert done.report["devices"]["managed"]["failed_allocations"] == 0


@pytest.mark.parametrize("configured", ["", "32MiB"])
def test_changes_while_the_program_runs(scenario, configured: str) -> None:
    assert scenario("change", KOILA_DEVICE_MEMORY=configured).stdout.splitlines() == [
        "before the first call: 0",
        "then: 64 MiB",
        "budget 12 MiB: 0; 2 of 12 MiB free; fits",
        "budget 11 MiB: 0; 1 of 11 MiB free; fits",
        "budget 10 MiB: 0; 0 of 10 MiB free; does not fit",
        "budget 5 MiB: 0; 0 of 5 MiB free; does not fit",
        "budget 0 MiB: 0; 8182 of 8192 MiB free; fits",
        "budget -1 MiB: 1; 8182 of 8192 MiB free; fits",
    ]


@pytest.mark.parametrize("bad", ["lots", "8", "0:8GiB,0:4GiB", "99:1GiB", "-1:1GiB", "0:", "120%", "1GiB,2GiB", ","])
def test_bad_values_are_said_once_and_do_nothing(scenario, bad: str) -> None:
    done = scenario("info", 1, KOILA_DEVICE_MEMORY=bad, KOILA_REPORT="off")
    assert (done.returncode, done.stdout) == (0, "8192 of 8192 MiB free, then 8189 of 8192\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("koila: ") and "KOILA_DEVICE_MEMORY" in line and "using no budget" in line


class TestInjectedFailures:
    """A failed request fails once more when it is made again at once: then a caching allocator, which empties its cache first, gives up."""

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            ("cuda:0:nth:3", "++x+++ last error 2\n"),
            ("nth:1", "x+++++ last error 2\n"),
            ("cuda:0:every:2", "+x+x+x last error 2\n"),
            ("cuda:1:nth:3", "++++++ last error 0\n"),
            ("cpu:nth:3", "++++++ last error 0\n"),
        ],
    )
    def test_fails_with_its_retry(self, scenario, spec: str, expected: str) -> None:
        done = scenario("requests", 6, KOILA_INJECT_OOM=spec)
        assert done.stdout == expected
        if "x" in expected:
            assert done.device()["failed_allocations"] == 2 * expected.count("x")
        assert done.device()["allocations"] == 6 - expected.count("x")

    def test_of_expandable_segments(self, scenario) -> None:
        assert scenario("segments", KOILA_INJECT_OOM="cuda:0:nth:4").stdout.startswith("3 segments, error 2, last error 0")


def test_a_share_is_of_the_devices_memory(scenario) -> None:
    done = scenario("fill", GI, KOILA_DEVICE_MEMORY="0:90%")
    assert done.device()["budget_bytes"] == int(0.9 * 8 * GI)
