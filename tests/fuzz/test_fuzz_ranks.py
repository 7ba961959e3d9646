"""Programs for two ranks, from seeds that are always the same: koila on one rank, and on both."""

import itertools
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ranks_driver  # noqa: E402
from fuzz_compare import Reference  # noqa: E402
from verdict import Setting  # noqa: E402


@pytest.mark.parametrize("koila, environment", [((0,), {}), ((0, 1), {"KOILA_MICROBATCH": "2"})], ids=["one", "both"])
def test_fixed_seeds(tmp_path, koila, environment):
    said = []
    verdicts, operators, found, programs = ranks_driver.fuzz(range(7, 11), itertools.repeat(environment), time.monotonic() + 600, lambda kind: True, tmp_path, said.append, koila_of=koila)
    assert not found, "\n".join(said)
    assert programs >= 3 and verdicts["exact"] >= 5, said


def test_what_is_wrong_is_found():
    plain = [Reference({"0/gradient/0": 1.0}), Reference({"0/gradient/0": 2.0})]

    def kinds(first, second, ended=("ended", "ended")):
        return [kind for kind, _ in ranks_driver.judged(plain, [([first], ended[0]), ([second] if second else [], ended[1])], [Setting()], (0,))]

    right, other = ("ok", "", {"0/gradient/0": 1.0}, 0, 0), ("ok", "", {"0/gradient/0": 2.0}, 0, 0)
    refused, lost = ("oom", "OutOfMemoryError: ", {}, 0, 0), ("error", "RuntimeError: Connection closed by peer", {}, 0, 0)
    assert kinds(right, other) == ["exact"]
    assert kinds(right, right) == ["wrong"]  # the rank without koila has got the wrong gradient
    assert kinds(refused, lost) == ["refused"]
    assert kinds(lost, lost) == ["error"]
    assert kinds(right, None, ("ended", "hang")) == ["hang"]
