"""The C++ examples as a user runs them: examples/cpp/digits.cc dies with less memory than it needs and trains with koila, digits_step.cc trains in micro-batches
without its rescue, and server.cc answers every request."""

import json
import re
import subprocess
import sys

import pytest
from cpp_programs import BUILD, ROOT

from harness import clean_environment, koila_environment

EXAMPLES = BUILD / "examples" / "cpp"
ONE_STEP = ["1", "1437"]
EPOCH = ["1", "480"]
# Losses are printed with six digits. Later steps amplify the rounding of the first.
FIRST, LATER = 2e-6, 1e-3


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "digits.txt"
    subprocess.run([sys.executable, ROOT / "examples" / "cpp" / "write_digits.py", path], check=True)
    return path


def train(digits, arguments, environment=None, program="digits"):
    return subprocess.run([EXAMPLES / program, digits, *arguments], env=clean_environment(environment or {}), capture_output=True, text=True, timeout=300)


def losses(done):
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]


@pytest.fixture(scope="module")
def budget(digits, tmp_path_factory):
    report = tmp_path_factory.mktemp("report") / "plain.json"
    losses(train(digits, EPOCH, koila_environment("track", KOILA_REPORT=str(report))))
    return json.loads(report.read_text())["devices"]["cpu"]["peak_bytes"] // 3


def test_dies_without_koila(digits, budget):
    done = train(digits, EPOCH, koila_environment("track", KOILA_CPU_MEMORY=f"{budget}B"))
    assert done.returncode < 0 and "out of memory" in done.stderr and not done.stdout


@pytest.mark.parametrize("arguments, tolerance", [(ONE_STEP, FIRST), (EPOCH, LATER)], ids=["one step", "an epoch"])
def test_trains_with_koila(digits, budget, tmp_path, arguments, tolerance):
    report = tmp_path / "report.json"
    found = losses(train(digits, arguments, koila_environment("rescue", KOILA_CPU_MEMORY=f"{budget}B", KOILA_REPORT=str(report))))
    report = json.loads(report.read_text())
    assert report["devices"]["cpu"]["peak_bytes"] <= budget and report["rescues"] > 0 and not report["refusals"]
    expected = losses(train(digits, arguments))
    assert len(found) == len(expected) == (1 if arguments == ONE_STEP else 3)
    assert max(abs(a - b) for a, b in zip(found, expected)) <= tolerance, (found, expected)


@pytest.mark.parametrize("mode, smaller", [("track", True), ("rescue", False)])
def test_trains_with_koila_step(digits, budget, mode, smaller):
    """In micro-batches of its own where koila does not rescue it before."""
    done = train(digits, EPOCH, koila_environment(mode, KOILA_CPU_MEMORY=f"{budget}B"), "digits_step")
    found, expected = losses(done), losses(train(digits, EPOCH))
    assert len(found) == 3 and max(abs(a - b) for a, b in zip(found, expected)) <= LATER, (found, expected)
    rows = [int(rows) for rows in re.findall(r"(\d+) rows at a time", done.stdout)]
    assert (max(rows) < 480) == smaller, rows


def test_the_same_to_the_bit_with_enough_memory(digits):
    done = train(digits, EPOCH, koila_environment("rescue"))
    assert done.stdout == train(digits, EPOCH).stdout and done.stderr == ""


@pytest.mark.parametrize("arguments, status", [([], 2), (["a", "b"], 2), (["/nonexistent", "1"], 1)])
def test_usage(arguments, status):
    done = subprocess.run([EXAMPLES / "digits", *arguments], env=clean_environment({}), capture_output=True, text=True, timeout=60)
    assert done.returncode == status and "write_digits.py" in done.stderr


REQUESTS = "small 100\nlarge 30000\nagain 30000\nbroken\nhuge 400000\nlast 7\n"


def serve(environment=None):
    done = subprocess.run([EXAMPLES / "server"], input=REQUESTS, env=clean_environment(environment or {}), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "not a request: broken" in done.stderr, done.stderr
    answers = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert list(answers) == ["small", "large", "again", "huge", "last"], "in the order of the requests"
    return answers


def score(answer):
    rows, mean = re.match(r"(\d+) rows, mean score (-?[\d.]+),", answer).groups()
    return int(rows), pytest.approx(float(mean), abs=2e-4)


def at_once(answer):
    return int(re.search(r"at most (\d+) rows at once", answer)[1])


def test_the_server_with_all_the_memory_it_wants():
    assert {name: at_once(answer) for name, answer in serve().items()} == dict.fromkeys(["small", "large", "again", "huge", "last"], 16384)


@pytest.mark.parametrize("mode", ["track", "rescue"])
def test_the_server_in_a_budget(mode):
    """One request has more rows than fit at all. It is told so; the others are answered, with the size that the first of them found."""
    expected, answers = serve(), serve(koila_environment(mode, KOILA_CPU_MEMORY="40MiB", KOILA_LADDER="0,1"))
    assert answers["huge"] == "no room for 400000 rows"
    for name in ("small", "large", "again"):
        assert score(answers[name]) == score(expected[name])
    assert answers["last"].startswith("7 rows, ")  # drawn after fewer numbers
    if mode == "track":
        assert at_once(answers["small"]) == 16384 and at_once(answers["large"]) == at_once(answers["again"]) == at_once(answers["last"]) == 2048
