"""Which of the many cases a run takes, and which are known not to hold yet.

KOILA_TESTS=full takes all of them. `known_gaps.txt` names cases that fail today, each with its reason: they run and may fail.
"""

import os
import pathlib

import pytest

import harness

GAPS = pathlib.Path(__file__).with_name("known_gaps.txt")


def known_gaps():
    gaps, reason = {}, ""
    for line in GAPS.read_text().splitlines():
        line = line.strip()
        if line.startswith("#"):
            reason = line[1:].strip()
        elif line:
            gaps[line] = reason
    return gaps


def sampled(item, number):
    """Every family and every test function stays; of the plain run's own checks, every sixth."""
    name = item.name
    if "test_exact_microbatch" in item.nodeid and name.startswith("test_micro_batch["):
        return name.endswith(("-3-adamw]", "-1-sgd]"))
    if "test_harness" in item.nodeid and name.startswith("test_order_of_rows"):
        return number % 6 == 0
    return True


def pytest_collection_modifyitems(config, items):
    if os.environ.get("KOILA_TESTS") != "full":
        kept = [item for number, item in enumerate(items) if sampled(item, number)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    gaps = known_gaps()
    for item in items:
        name = f"{item.path.name}::{item.name}"
        if name in gaps:
            item.add_marker(pytest.mark.xfail(reason=gaps[name], strict=False))


def pytest_sessionfinish(session, exitstatus):
    harness.stop_servers()
