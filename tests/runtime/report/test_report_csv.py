"""The time series, as a person would read it."""

import csv

import pytest
from report_files import report, samples

CATEGORIES = ("other", "parameters", "gradients", "optimizer_state", "inputs", "activations", "workspace")
COLUMNS = ["seconds", "device", "live_bytes", *(f"{c}_bytes" for c in CATEGORIES), "step", "step_peak_bytes", "batch", "micro_batch", "rescues"]


def rows(name: str) -> list[dict]:
    with open(samples() / f"{name}.csv", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        found = list(reader)
    assert reader.fieldnames == COLUMNS
    assert all(len(row) == len(COLUMNS) and None not in row.values() for row in found)
    return found


def test_nothing_is_a_line_of_names() -> None:
    assert rows("empty") == []


@pytest.mark.parametrize("name", ("full", "longest"))
def test_a_row_for_each_sample_and_the_end(name: str) -> None:
    whole = report(name)
    for device, figures in whole["devices"].items():
        of_device = [row for row in rows(name) if row["device"] == device]
        timeline = figures.get("timeline", {"seconds": [], "live_bytes": [], "by_category": {c: [] for c in CATEGORIES}})
        seconds, live = list(timeline["seconds"]), list(timeline["live_bytes"])
        if not seconds or seconds[-1] < whole["seconds"]:
            seconds.append(whole["seconds"])
            live.append(figures["live_bytes"])
        assert [float(row["seconds"]) for row in of_device] == seconds
        assert sum(int(row["live_bytes"]) for row in of_device) == sum(live)
        for category in CATEGORIES:
            column = [int(row[f"{category}_bytes"]) for row in of_device][: len(timeline["seconds"])]
            assert column == timeline["by_category"][category]


def test_a_row_says_which_step_it_was_in() -> None:
    cpu = [row for row in rows("full") if row["device"] == "cpu"]
    of_step = [tuple(row[name] for name in ("step", "step_peak_bytes", "batch", "micro_batch", "rescues")) for row in cpu]
    assert of_step == [
        ("1", str(150 << 20), "512", "256", "0"),
        ("2", "", "512", "128", "0"),  # its peak is another device's
        ("20", str(20 << 20), "", "", "2"),  # nothing of it was split
        ("", "", "", "", "3"),  # after the last step
    ]
