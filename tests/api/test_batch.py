"""koila::batch, range and chunked as a LibTorch program uses them: its memory really runs out, with koila and without; and the public headers."""

import collections
import os
import subprocess
import sys
from pathlib import Path

import pytest
from selection import in_full

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KOILA_BUILD", ROOT / "build"))
PRELOAD = Path(os.environ.get("KOILA_LIBRARY", BUILD / "lib" / "libkoila.so"))
PROGRAM = BUILD / "tests" / "api" / "batch_program"
HEADERS = sorted(str(path.relative_to(ROOT / "include")) for path in (ROOT / "include" / "koila").glob("*.h"))


def run(*arguments, **variables):
    """What it printed: the sizes tried, by name, in order."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KOILA_") and name != "LD_PRELOAD"}
    done = subprocess.run([PROGRAM, *arguments], env=kept | variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = collections.defaultdict(list)
    for line in done.stdout.splitlines():
        name, value = line.rsplit(" ", 1)
        said[name].append(value)
    assert said.pop("off by") == ["0"]
    return {name: [int(value) for value in values] for name, values in said.items()}


def koila(*arguments, **variables):
    return run(*arguments, **{"LD_PRELOAD": str(PRELOAD), "KOILA_REPORT": "off", "KOILA_LOG": "error"} | variables)


# A row takes one MiB, and one more in between. A call that remembers begins where the one before it ended.
UNDER_24_MIB = {"range": [32, 16] + [8] * 8, "chunked": [32, 16] + [8] * 4}
WHOLE = {"range": [32, 32], "chunked": [32]}


def test_nothing_to_do():
    said = run()
    assert set(said.pop("entry range")) == {32}  # two, when what the machine has free has passed from one step to another
    assert said == WHOLE | {"entry chunked": [32]}


def test_a_limit_of_the_kernels():
    """What malloc keeps from the first range is there for the others on top: so they are not known to the byte."""
    said = run("40")
    assert said["range"][:3] == [32, 16, 16] and min(said["range"]) >= 4
    assert said["entry range"] == [said["range"][-1]]


def test_a_budget_of_koilas():
    said = koila(KOILA_MODE="track", KOILA_CPU_MEMORY="24MiB")
    assert said == UNDER_24_MIB | {"budget": [24], "entry range": [8], "entry chunked": [8]}


@pytest.mark.parametrize("budget", [0, 512])
def test_a_limit_is_koilas_budget_where_it_counts(budget):
    said = koila("24", KOILA_MODE="track", **({"KOILA_CPU_MEMORY": f"{budget}MiB"} if budget else {}))
    assert said == UNDER_24_MIB | {"budget": [budget], "entry range": [8], "entry chunked": [8]}  # the budget is what it was before


def test_the_smaller_limit_holds():
    said = koila("512", KOILA_MODE="track", KOILA_CPU_MEMORY="24MiB")
    assert said["range"] == UNDER_24_MIB["range"]


def test_koila_rescues_first():
    said = koila(KOILA_CPU_MEMORY="24MiB")
    assert said == WHOLE | {"budget": [24], "entry range": [32], "entry chunked": [32]}


@pytest.fixture(scope="module")
def compiler():
    facts = subprocess.run([sys.executable, ROOT / "scripts" / "lib" / "torch_facts.py"], capture_output=True, text=True, check=True).stdout.splitlines()
    torch = [flag for folder in facts[3].split(":") for flag in ("-isystem", folder)]
    return [os.environ.get("CXX", "c++"), "-fsyntax-only", f"-D_GLIBCXX_USE_CXX11_ABI={facts[2]}", f"-I{ROOT / 'include'}", *torch, "-xc++", "-"]


def compile_text(compiler, text, *options):
    return subprocess.run([*compiler, *options], input=text, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("header", "standard"), [in_full((header, "c++17")) for header in HEADERS if header != "koila/torch.h"] + [("koila/torch.h", "c++17"), ("koila/torch.h", "c++20"), in_full(("koila/rule.h", "c++20"))])
def test_each_header_compiles_alone(compiler, header, standard):
    twice = f"#include <{header}>\n" * 2
    done = compile_text(compiler, twice, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
    assert done.returncode == 0, done.stderr


WRONG = {
    "koila::batch(8, [] {});": "koila::batch(initial, f): f takes the batch size, as in [&](int64_t batch_size) { ... }",
    "koila::range(0, 8, 4, [](int64_t) {});":
        "koila::range(begin, end, initial_step, f): f takes the rows [begin, end), as in [&](int64_t begin, int64_t end) { ... }",
    "koila::chunked(at::Tensor(), 4, [](int64_t, int64_t) {});":
        "koila::chunked(tensor, initial, f): f takes the chunk and its rows, as in [&](at::Tensor chunk, int64_t begin, int64_t end) { ... }",
}


def test_a_function_of_the_wrong_arguments_does_not_compile_and_says_so(compiler):
    """And nothing else is wrong in the program's own lines: the sentence is what is read."""
    done = compile_text(compiler, "#include <koila/batch.h>\nvoid wrong() {\n" + "\n".join(WRONG) + "\n}\n", "-std=c++17")
    errors = [text for text in done.stderr.splitlines() if " error: " in text]
    assert len(errors) == len(WRONG), done.stderr
    for error, sentence in zip(errors, WRONG.values()):
        assert sentence in error
