"""What scripts/bench_peers makes of its measurements: tables, errors, searches, and what is kept between two calls. Nothing is measured here."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib" / "peers"))
import alternatives  # noqa: E402
import figures  # noqa: E402
import machinery  # noqa: E402
import measure  # noqa: E402
import tables  # noqa: E402
import ways  # noqa: E402


def test_an_error_is_over_the_norm_of_what_was_wanted():
    wanted = [np.array([3.0, 0.0]), np.array([[4.0]])]
    assert figures.relative_error(wanted, wanted) == 0
    assert figures.relative_error([np.array([3.0, 0.5]), np.array([[4.0]])], wanted) == pytest.approx(0.1)
    assert figures.relative_error([4 * array for array in wanted], wanted) == pytest.approx(3), "accumulated four times and not divided"
    assert figures.relative_error(wanted[:1], wanted) == math.inf, "a gradient is missing"
    assert figures.relative_error([np.zeros(0), wanted[1]], wanted) == math.inf, "a parameter without one"


def test_outcomes_are_told_apart():
    assert figures.outcome_of(RuntimeError("CPU out of memory. Tried to allocate")) == "memory"
    assert figures.outcome_of(RuntimeError("No executable batch size found, reached zero.")) == "memory"
    assert figures.outcome_of(ValueError("one\ntwo")) == "ValueError: one"
    assert figures.outcome_of(ValueError()) == "ValueError: "


def test_epochs_are_counted_behind_the_first_step():
    assert figures.epoch_seconds([1, 2, 4, 7, 11], 2) == [3, 7]
    assert figures.epoch_seconds([1, 2, 3], 4) == [4], "one that was not finished"
    assert figures.epoch_seconds([1], 1) == []


@pytest.mark.parametrize("limit, found", [(100, 16), (16, 16), (1, 0.8), (3, 2.7), (0.5, 0.4), (0.01, 0)])
def test_the_largest_batch_is_found(limit, found):
    tried = []

    def trains(factor):
        tried.append(factor)
        return factor <= limit
    result = measure.largest_factor(trains)
    assert result <= limit and result >= found
    assert len(tried) <= 8 and max(tried) <= measure.MOST


def test_changed_lines_are_those_of_the_loop():
    assert ways.changed_lines(ways.plain, ways.plain) == 0
    assert ways.changed_lines(ways.bf16, ways.plain) == 1, "what is only indented is no change"
    assert ways.changed_lines(ways.by_hand, ways.plain) == 2
    assert ways.changed_lines(ways.with_trainer_checkpointing, ways.with_trainer) == 1


def test_every_alternative_is_a_loop_that_is_there():
    for way in alternatives.WAYS.values():
        assert way.environment in alternatives.ENVIRONMENTS
        for work in tables.TITLES:
            if way.does(work):
                assert callable(getattr(ways, way.function(work)))
    assert all("==" in package for package in alternatives.PACKAGES + alternatives.ALONE), "without a version it is another table tomorrow"
    assert tables.TITLES.keys() <= measure.ROWS.keys()


OK = {"outcome": "ok", "batch": 64, "until_first": 0.5, "state": None}
MEMORY = {"outcome": "memory", "state": {"gradients": 2, "of": 20, "steps": 0, "statistics": True, "generator": False}}
RIGHT, WRONG = {"gradient": 1e-15, "ragged": 2e-15, "statistics": None}, {"gradient": 0.1, "ragged": 0.1, "statistics": 0.2}


def entry(speed, seconds, errors, **more):
    return {"lines": 3, "shares": measure.SHARES, "speed": speed, "seconds": seconds, "plain": [0.05] * 4, "errors": errors, "largest": 16.0} | more


def test_a_row_says_what_was_measured():
    rows = tables.work_table("gpt", 64, {"toma": entry([OK, OK | {"lost": 1.0}, MEMORY, {"outcome": "ValueError: no"}], [0.05, 0.1, None, None], [RIGHT, WRONG, {}, {}])}, 16)
    assert rows[0] == "### GPT" and rows[2].count("|") == rows[3].count("|") == rows[4].count("|")
    cells = [cell.strip() for cell in rows[4].split("|")[1:-1]]
    assert cells == ["toma", "3", "1.00", "0.50", "out of memory", "error", "64", "0.10", "0.20", "1.50", "16 or more", "running statistics, gradients of 2 of 20 parameters"]


def test_other_batches_are_named():
    assert tables.batch_cell([OK, OK, MEMORY], 64) == "64"
    assert tables.batch_cell([OK | {"batch": 28}, MEMORY], 64) == "28, -"
    assert tables.batch_cell([MEMORY], 64) == ""


def test_the_short_table_counts_what_is_exact():
    both = {"gpt": {"toma": entry([OK] * 4, [0.05] * 4, [RIGHT] * 5)}, "cnn": {"toma": entry([OK, OK, MEMORY, MEMORY], [0.1, 0.2, None, None], [WRONG, WRONG, {}, {}, WRONG], lines=4)}}
    assert tables.short_table(both)[2:] == ["| toma | 6 of 8 | 4 | 0.25 to 1.00 | 3 to 4 |"]


def test_a_wrong_gradient_anywhere_is_not_exact():
    assert tables.is_exact(entry([OK], [1], [RIGHT, {}]), "toma")
    assert not tables.is_exact(entry([OK], [1], [RIGHT, WRONG]), "toma")
    assert not tables.is_exact(entry([OK], [1], [RIGHT | {"statistics": 1e-3}]), "koila")
    assert not tables.is_exact(entry([OK], [1], [{}]), "koila"), "nothing was measured"


def test_only_the_generated_part_of_a_page_changes():
    page = "before\n<!-- tables: made by scripts/bench_peers -->\nold\n<!-- end of tables -->\nafter\n"
    once = tables.between_markers(page, "tables", ["| new |"])
    assert once.startswith("before\n") and once.endswith("<!-- end of tables -->\nafter\n") and "old" not in once and "| new |" in once
    assert tables.between_markers(once, "tables", ["| new |"]) == once


@pytest.mark.parametrize("page, marker", [("docs/comparison.md", "tables"), ("docs/comparison.md", "absent"), ("docs/comparison.md", "curve"), ("README.md", "comparison")])
def test_the_pages_have_room_for_it(page, marker):
    assert "| new |" in tables.between_markers((ROOT / page).read_text(), marker, ["| new |"])


def test_results_are_gone_on_with_and_not_those_of_other_sources(tmp_path):
    path = tmp_path / "results"
    first = machinery.Results(path, {"fingerprint": "a", "date": "then"})
    assert first.get("x", lambda: {"n": 1}) == {"n": 1} and first.get("x", lambda: {"n": 2}) == {"n": 1}
    with path.open("a") as file:
        file.write('{"name": "y", "resu')  # it was killed while it wrote
    again = machinery.Results(path, {"fingerprint": "a", "date": "now"})
    assert again.header["date"] == "then" and again.get("x", lambda: {"n": 3}) == {"n": 1} and again.get("y", lambda: {"n": 4}) == {"n": 4}
    assert machinery.Results(path, {"fingerprint": "a"}).known["y"] == {"n": 4}
    assert machinery.Results(path, {"fingerprint": "b"}).known == {} and json.loads(path.read_text()) == {"fingerprint": "b"}
