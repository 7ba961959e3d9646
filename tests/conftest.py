"""Which tests a run takes, and to which of its processes they go."""

import re
import sys

import pytest
import xdist.scheduler


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also the tests that are marked full")
    parser.addoption("--only-failures", action="store_true", help="nothing is written of tests that do as they should, but for their number")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: left out unless --full is given, or the test by its name (FILE::TEST)")


def pytest_collection_modifyitems(config, items):
    if config.getoption("full") or any("::" in argument for argument in config.args):
        return
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
    items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(report, config):
    category, letter, word = yield
    if config.getoption("only_failures") and category in ("passed", "skipped", "xfailed"):
        return category, "", ""
    return category, letter, word


# Long tests that share no fixture.
APART = re.compile(r"tests/(?:docs|conformance)/|/test_(?:batch|trainers|sweep)\.py")
EXAMPLE = re.compile(r"/test_(?:examples|rules)\.py::\w+\[((?:custom_op/|digits_|char_|text_)[a-z]+)")


class ByFixture(xdist.scheduler.LoadScopeScheduling):
    """A file's tests go to one worker, for their fixtures and servers take longer than they; so do those of an example."""

    def _split_scope(self, nodeid):
        if APART.search(nodeid):
            return nodeid
        example = EXAMPLE.search(nodeid)
        return example[1] if example else nodeid.split("::")[0]


def pytest_xdist_make_scheduler(config, log):
    return ByFixture(config, log)


def pytest_sessionfinish(session, exitstatus):
    if harness := sys.modules.get("harness"):
        harness.stop_servers()
