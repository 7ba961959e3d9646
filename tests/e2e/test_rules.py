"""Rules for operators of one's own: split and exact with them, whole and exact without them or where they do not fit, and harmless when they are
wrong."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

import test_bad_input
from harness import LIBRARY, ROOT, clean_environment, koila_environment
from selection import one_in, only
from test_examples import STEPS, Example

RULES = """
# operator(argument: placement, ...) -> placement, ...
mine::times(x: Shard(any but -1), w: Replicate) -> Shard(any)
mine::merged(x: Shard(0), w: Replicate) -> Shard(0)
mine::pair(a: Shard(0), b: Shard(0)) -> Partial
mine::average(a: Shard(0)) -> Partial mean
mine::twice(x: Partial) -> Partial
mine::take(x: Shard(0), rows: rows, size[0]: rows) -> Shard(0)
mine::add_all(xs: Shard(any)) -> Shard(any)
mine::both(x: Shard(0)) -> Shard(0), Partial
mine::optional(x: Shard(0), y: Shard(0)) -> Shard(0)
mine::optional(x: Partial, y: Partial) -> Partial
mine::plus_one(x: Shard(any)) -> Shard(any)
mine::picky(x: Shard(0)) -> Shard(0)
mine::noisy(x: Shard(0)) -> Shard(0), Shard(0)  random
mine::again(x: Shard(0)) -> Shard(0)
mine::again(x: Shard(0), y: Shard(0)) -> Shard(0)
"""

WRONG = """
mine::shorter(x: Shard(0)) -> Shard(0)
mine::misnamed(input: Shard(0)) -> Shard(0)
mine::counted(x: Shard(0)) -> Partial mean
mine::writes(x: Shard(0)) -> Shard(0)
mine::times(x: Shard(0), w: Replicate) -> Shard(0), Shard(0)
aten::add(self: Shard(0)) -> Shard(0)
aten::max(self: Shard(0)) -> Shard(0)
mine::not_there(x: Shard(0)) -> Shard(0)
"""

NEVER = {"draws"}  # its draws are others than plain's
SPLIT = ["rows", "merged_rows", "losses", "sums", "literals", "lists", "two_results", "optionals", "in_place"]


def run(folder, environment, *names, ok=True):
    """(arrays, operators that ran at full batch, notes, log) of rule_ops.py."""
    out, report = folder / f"{time.monotonic_ns()}.pt", folder / "report.json"
    if "LD_PRELOAD" in environment:
        environment = {**environment, "KOILA_REPORT": str(report)}
    process = subprocess.run([sys.executable, str(ROOT / "tests" / "e2e" / "rule_ops.py"), str(out), *names], env=clean_environment(environment),
                             capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-5000:]
    found = json.loads(report.read_text()) if report.exists() else {"full_batch_ops": [], "notes": []}
    return torch.load(out), {op["op"]: op["count"] for op in found["full_batch_ops"]}, found["notes"], process.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    (folder / "mine.rules").write_text(RULES)
    (folder / "wrong.rules").write_text(WRONG)
    return folder


@pytest.fixture(scope="module")
def plain(folder):
    return run(folder, {})[0]


def under(folder, rules, rows, **more):
    return koila_environment("rescue", rows, KOILA_RULES=str(folder / rules), **more)


def assert_same(expected, found, names=None):
    wrong = []
    for key, value in expected.items():
        if (names and key.split("/")[0] not in names) or key.split("/")[0] in NEVER:
            continue
        error = (found[key] - value).abs().max().item() / max(value.abs().max().item(), 1e-3)
        if not error <= 1e-5 or found[key].shape != value.shape:
            wrong.append(f"{key}: {error}")
    assert not wrong, wrong


@pytest.mark.parametrize("rows", only([5], [1, 5, 6]))
def test_rules_split_and_are_exact(folder, plain, rows):
    found, whole, notes, log = run(folder, under(folder, "mine.rules", rows), *SPLIT)
    assert_same(plain, found, SPLIT)
    assert not [op for op in whole if op.startswith("mine::")], whole
    assert not notes and not log


def test_without_rules_they_run_whole_and_are_exact(folder, plain):
    found, whole, _, _ = run(folder, koila_environment("rescue", 5), *SPLIT)
    assert_same(plain, found, SPLIT)
    assert {"mine::times", "mine::pair", "mine::both", "mine::add_all"} <= set(whole)


def test_a_call_that_no_rule_fits_runs_whole(folder, plain):
    names = ["literals_of_another_meaning", "fussy"]
    found, whole, notes, _ = run(folder, under(folder, "mine.rules", 5), *names)
    assert_same(plain, found, names)
    assert set(whole) == {"mine::take", "mine::picky"} and not notes


def test_draws_are_repeated_in_backward(folder):
    """The step asserts it itself."""
    for rows in (1, 5):
        _, whole, _, _ = run(folder, under(folder, "mine.rules", rows), "draws")
        assert "mine::noisy" not in whole


@pytest.mark.parametrize("rows", only([5], [1, 5]))
def test_wrong_rules_are_refused_with_a_line_each(folder, plain, rows):
    names = ["rows", "wrong_shape", "wrong_names", "wrong_mean", "writing"]
    found, whole, notes, log = run(folder, under(folder, "wrong.rules", rows), *names)
    assert_same(plain, found, names)
    assert {"mine::shorter", "mine::misnamed", "mine::counted", "mine::times"} <= set(whole)
    path = folder / "wrong.rules"
    expected = {
        f"{path}:2: the rule does not hold for mine::shorter: a result has another size than it says, or is a mean of whole numbers; it is not used from here on",
        f"{path}:3: mine::misnamed has no argument 'input'; expected one of: x; the rule does not hold for it",
        f"{path}:4: the rule does not hold for mine::counted: a result has another size than it says, or is a mean of whole numbers; it is not used from here on",
        f"{path}:5: mine::writes gives 0 results, and the rule says what becomes of 1; the rule does not hold for it",
        f"{path}:6: mine::times gives 1 results, and the rule says what becomes of 2; the rule does not hold for it",
        f"{path}:7: koila has a rule for aten::add already, which stays; expected an operator without one",
        f"{path}:8: koila has a rule for aten::max already, which stays; expected an operator without one",
    }
    assert set(notes) == expected
    assert {line.removeprefix("koila: ") for line in log.splitlines()} == expected


def test_a_rule_may_come_later(folder, plain):
    found, whole, notes, log = run(folder, koila_environment("rescue", 5), "rule_that_comes_later")
    assert_same(plain, found, ["rule_that_comes_later"])
    assert whole.get("mine::late", 0) <= 2, whole  # of six steps, the first alone was without it
    assert notes == ["here:2: column 28: the rule ends, expected Shard(...) or Partial, for each tensor that comes out"]
    assert set(log.splitlines()) == {f"koila: {notes[0]}"}


def test_operators_that_are_defined_anew(folder, plain):
    for rules in ("mine.rules", "wrong.rules"):
        found, whole, _, _ = run(folder, under(folder, rules, 5), "defined_anew")
        assert_same(plain, found, ["defined_anew"])
        assert "mine::again" not in whole  # its kernel is made of other operators, and without a rule these are split


# ---- the examples ------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module", params=["custom_op/fused_gelu", "custom_op/rms_norm"])
def example(request, tmp_path_factory):
    if request.param.endswith("rms_norm") and not (ROOT / "build" / "examples" / "custom_op" / "rms_norm.so").exists():
        pytest.skip("build/examples/custom_op/rms_norm.so is not built (scripts/setup --tests)")
    rules = ROOT / "examples" / f"{request.param}.rules"
    return Example(request.param, tmp_path_factory.mktemp("custom_op"), {"KOILA_RULES": str(rules)} if rules.exists() else {})


def whole_operators(report):
    return {op["op"] for op in report["full_batch_ops"]}


@pytest.mark.parametrize("steps", only([STEPS], [1, STEPS]))
def test_example_trains_in_a_third_of_its_memory(example, steps):
    process, report, saved = example.run(koila_environment("rescue", KOILA_CPU_MEMORY=f"{example.budget}B"), steps)
    assert process.returncode == 0, process.stderr[-3000:]
    assert report["devices"]["cpu"]["peak_bytes"] <= example.budget
    assert report["rescues"] > 0 and not report["refusals"]
    assert not whole_operators(report) and not report["notes"]
    wrong = example.wrong_first(saved) if steps == 1 else example.wrong(saved)
    assert not wrong, f"{wrong[:5]}; tolerances {example.tolerances}"


@pytest.mark.parametrize("rows", only([300], [1000, 300]))
def test_example_in_micro_batches(example, rows):
    process, report, saved = example.run(koila_environment("rescue", microbatch=rows))
    assert process.returncode == 0, process.stderr[-3000:]
    assert report["regions_total"]["count"] >= STEPS and not whole_operators(report)
    assert not example.wrong(saved), f"{example.wrong(saved)[:5]}; tolerances {example.tolerances}"


def test_example_dies_without_koila(example):
    process, _, saved = example.run(koila_environment("track", KOILA_CPU_MEMORY=f"{example.budget}B"))
    assert process.returncode == 1 and saved is None
    assert "OutOfMemoryError" in process.stderr


def test_example_without_its_rule_runs_the_operator_whole(example):
    if not example.environment:
        pytest.skip("its rule is part of it")
    process, report, saved = example.run(koila_environment("rescue", microbatch=300, KOILA_RULES=""))
    assert process.returncode == 0, process.stderr[-3000:]
    assert whole_operators(report) == {"fused::scale_shift_gelu"}
    assert not example.wrong(saved)


# ---- every allocation fails once ---------------------------------------------------------------------------------------------

SWEEP = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
import torch, fused_gelu
torch.ops.load_library(sys.argv[2])
koila = ctypes.CDLL(None)
koila.koila_set_inject.argtypes = [ctypes.c_char_p]
koila.koila_allocations.restype = ctypes.c_int64

def step(inject):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), fused_gelu.ScaleShiftGelu(32), torch.nn.Linear(32, 32))
    weight, x = torch.nn.Parameter(torch.ones(32)), torch.randn(24, 16)
    before = koila.koila_allocations(-1)
    koila.koila_set_inject(inject)
    try:
        loss = torch.ops.tiny.rms_norm(model(x), weight).square().mean()
        loss.backward()
        allocated = koila.koila_allocations(-1) - before
    finally:
        koila.koila_set_inject(b"")
    return [loss.detach(), weight.grad, *(p.grad for p in model.parameters())], allocated

def wrong(found):
    return any((a - b).abs().max() > 1e-5 * max(a.abs().max().item(), 1e-2) for a, b in zip(expected, found))

expected, allocations = step(b"")
for n in range(1, allocations + 1):
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = 1 if wrong(step(b"nth:%d" % n)[0]) or wrong(step(b"")[0]) else 0
        except torch.OutOfMemoryError as error:
            print(n, error)
            code = 2
        finally:
            os._exit(code)
    print(n, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_each_allocation_may_fail():
    """Within kernels and gradients in Python and in C++ as well: one failure is rescued, to the same numbers, and so is the step after."""
    library = ROOT / "build" / "examples" / "custom_op" / "rms_norm.so"
    if not library.exists():
        pytest.skip("build/examples/custom_op/rms_norm.so is not built (scripts/setup --tests)")
    folder = ROOT / "examples" / "custom_op"
    environment = koila_environment("rescue", KOILA_RULES=str(folder / "fused_gelu.rules"), KOILA_LOG="off")
    process = subprocess.run([sys.executable, "-c", SWEEP, str(folder), str(library)], env=clean_environment(environment), capture_output=True, text=True, timeout=300)
    lines = process.stdout.splitlines()
    assert process.returncode == 0 and len(lines) > 40, process.stderr[-3000:]
    assert not [line for line in lines if not line.endswith(" 0")], lines


# ---- files that are no rules -------------------------------------------------------------------------------------------------

def put(path, content):
    path.write_bytes(content)


BAD_FILES = {
    "missing": (lambda path: None, "cannot be read: No such file"),
    "folder": (os.mkdir, "cannot be read: it is not a regular file"),
    "pipe": (os.mkfifo, "cannot be read: it is not a regular file"),
    "device": (lambda path: os.symlink("/dev/zero", path), "cannot be read: it is not a regular file"),
    "nonsense": (lambda path: put(path, b"\n\nmylib::op(x: Shard(0) -> Shard(0)\n"), ":3: column 23: found '-', expected ')' after the arguments; the line is left out"),
    "nul": (lambda path: put(path, b"a::b(x: \0Shard(0)) -> Shard(0)"), ":1: column 9: found '\\x00', expected Replicate"),
    "binary": (lambda path: put(path, os.urandom(100_000).replace(b"#", b"")), ":1: column "),
    "long": (lambda path: put(path, b"a::b(" * 5_000_000), ":1: column 8: found ':', "),
    "million": (lambda path: put(path, b"nonsense\n" * 1_000_000), "more lines that are no rules"),
}


@pytest.mark.parametrize("name", one_in(3, BAD_FILES))
def test_bad_file_is_said_and_the_program_runs_on(tmp_path, name):
    make, said = BAD_FILES[name]
    path, report = tmp_path / "my.rules", tmp_path / "report.json"
    make(path)
    plain = subprocess.run([sys.executable, "-c", test_bad_input.PROGRAM], env=clean_environment({}), capture_output=True, text=True)
    began = time.monotonic()
    result = test_bad_input.python(KOILA_RULES=str(path), KOILA_REPORT=str(report))
    assert time.monotonic() - began < 60
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), result.stderr
    lines = result.stderr.splitlines()
    assert 1 <= len(lines) <= 7 and any(said in line and str(path) in line for line in lines), result.stderr
    assert ["koila: " + note for note in json.loads(report.read_text())["notes"]] == lines


GOOD_FILES = {
    "empty": b"",
    "comments": b"# nothing\n\n   # more\n",
    "no_newline": b"mylib::op(x: Shard(0)) -> Shard(0)",
    "crlf": b"mylib::op(x: Shard(0)) -> Shard(0)\r\n\r\n# mine\r\n",
    "byte_order_mark": b"\xef\xbb\xbfmylib::op(x: Shard(0)) -> Shard(0)\n",
    "not_utf8": b"mylib::op(x: Shard(0)) -> Shard(0)  # \xff\xfe\0\n",
}


@pytest.mark.parametrize("name", one_in(2, GOOD_FILES))
def test_good_file_says_nothing(tmp_path, name):
    put(tmp_path / "my.rules", GOOD_FILES[name])
    result = test_bad_input.python(KOILA_RULES=str(tmp_path / "my.rules"), KOILA_STRICT="1")
    assert result.returncode == 0 and result.stdout.startswith("done") and result.stderr == "", result.stderr


def test_strict_stays_out_for_a_bad_rule(tmp_path):
    put(tmp_path / "my.rules", b"nonsense\n")
    result = test_bad_input.python(KOILA_RULES=str(tmp_path / "my.rules"), KOILA_STRICT="1", KOILA_REPORT="stderr")
    assert result.returncode == 0 and result.stdout.startswith("done"), result.stderr
    assert "koila stays out of this process" in result.stderr.splitlines()[-1]


def test_a_process_without_torch_reads_no_rules(tmp_path):
    put(tmp_path / "my.rules", b"nonsense\n")
    result = subprocess.run(["/bin/ls", str(tmp_path)], env=clean_environment({"LD_PRELOAD": str(LIBRARY), "KOILA_RULES": str(tmp_path / "my.rules")}), capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("my.rules\n", "")


UNEVEN = """
import torch
lib = torch.library.Library("mine", "DEF")
lib.define("uneven(Tensor x) -> Tensor")
lib.impl("uneven", lambda x: FAULT(x) if len(x) < 5 else x * 2, "CompositeExplicitAutograd")
x = torch.randn(12, 6)
weight = torch.randn(6, 6, requires_grad=True)
try:
    h = x @ weight
    torch.ops.mine.uneven(h.detach()).add(h).sum().backward()
except torch.OutOfMemoryError as error:
    print("refused:", "placement rule" in str(error) or "found it wrong" in str(error))
"""


@pytest.mark.parametrize("fault", ["(lambda x: x[:, :3].clone())", "(lambda x: 1 / 0)", "(lambda x: torch.zeros(3, 3).inverse())"])
def test_a_part_of_the_rows_that_breaks_the_promise_is_a_refusal(tmp_path, fault):
    """In micro-batches of fewer than five rows: an out-of-memory, and no error of koila's or of the operator's own."""
    (tmp_path / "uneven.rules").write_text("mine::uneven(x: Shard(0)) -> Shard(0)\n")
    environment = koila_environment("lazy", microbatch=5, KOILA_RULES=str(tmp_path / "uneven.rules"), KOILA_VERIFY="0")
    process = subprocess.run([sys.executable, "-c", UNEVEN.replace("FAULT", fault)], env=clean_environment(environment), capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.splitlines()[-1:] == ["refused: True"], process.stderr[-3000:]
