"""What micro-batches come to is proven before the program gets it: wrong numbers are found by default, the right ones let through, and the program goes on."""

import json
import subprocess
import sys
import textwrap

import pytest

from harness import ROOT, clean_environment, koila_environment

# Operators whose rules, true as they look on two or three rows, are lies.
PROGRAM = textwrap.dedent("""
    import sys
    sys.path.append(sys.argv[1])
    import torch, torch.nn as nn
    from koila_abi import Koila

    def define(name, forward, backward):
        torch.library.define("mine::" + name, "(Tensor x) -> Tensor")
        torch.library.impl("mine::" + name, "CPU", forward)
        torch.library.register_autograd("mine::" + name, backward, setup_context=lambda ctx, inputs, output: None)

    calls = [0]

    def moody(x):
        calls[0] += 1
        return x * (1 + calls[0] / 1000)

    define("mixed", lambda x: x.softmax(0), lambda ctx, g: g * 2)
    define("bent", lambda x: x * 2, lambda ctx, g: g * 2 + g.sum(0))
    define("many", lambda x: x * (2 if len(x) > 8 else 1), lambda ctx, g: g)   # more rows than a micro-batch has are another thing
    define("seven", lambda x: x * (2 if len(x) > 6 else 1), lambda ctx, g: g)  # a micro-batch has more, some others have not
    define("moody", moody, lambda ctx, g: g)                                   # gives something else each time
    define("good", lambda x: x * 2, lambda ctx, g: g * 2)
    operator = getattr(torch.ops.mine, sys.argv[2])
    koila = Koila()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)).double()
    state = {name: value.clone() for name, value in net.state_dict().items()}

    def step(inject):
        net.load_state_dict(state)  # after a refusal as well
        net.zero_grad()
        torch.manual_seed(1)
        x = torch.randn(16, 8).double()
        koila.limit(0, inject)
        if sys.argv[3] == "0":
            torch.ops.koila.lazy(x, 0, 0)
        try:
            h = operator(torch.tanh(net(x)))
            loss = (net(h.cumsum(1)) * 3).pow(2).mean() + h.abs().mean()
            loss.backward()
        except torch.OutOfMemoryError as error:
            return error
        finally:
            koila.limit(0, None)
        return [loss.item(), *(p.grad.abs().sum().item() for p in net.parameters())]

    plain = step(None)
    if isinstance(plain, Exception):
        raise plain
    found = [step("nth:" + sys.argv[3]) for _ in range(2)]
    for run in found:
        print("refused" if isinstance(run, Exception) else "same" if all(abs(a - b) < 1e-9 * abs(b) for a, b in zip(run, plain)) else "wrong")
""")


def run(tmp_path, operator, number=14, **more):
    rules = tmp_path / "my.rules"
    rules.write_text(f"mine::{operator}(x: Shard(0)) -> Shard(0)\n")
    environment = clean_environment(koila_environment("rescue", KOILA_RULES=str(rules), KOILA_LADDER="1", **more))
    return subprocess.run([sys.executable, "-c", PROGRAM, ROOT / "scripts" / "lib", operator, str(number)], env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("operator, check, text", [
    ("mixed", "rule", "gives other values for rows"),
    ("bent", "rule", "gives another gradient"),
    ("many", "what PyTorch had computed", "gives other values in micro-batches than PyTorch had computed"),
])
def test_wrong_numbers_are_found_by_default(tmp_path, operator, check, text):
    done = run(tmp_path, operator, KOILA_RECORD=str(tmp_path / "record"))
    assert done.stdout == "refused\nrefused\n", done.stdout + done.stderr[-2000:]
    assert f"a check found it wrong ({check}): mine::{operator} {text}" in done.stderr
    assert done.stderr.count("please report it as a bug of koila, with") == 1, "once a process"
    sent = json.loads((tmp_path / "record.mismatch.json").read_text())
    assert sent["koila"] and sent["torch"]
    assert sent["mismatch"]["check"] == check and sent["mismatch"]["operator"] == f"mine::{operator}" and sent["mismatch"]["batch"] == 16
    assert {"operator", "inputs", "outputs"} <= sent["mismatch"]["operators"][0].keys()
    assert str(tmp_path) not in json.dumps(sent)
    assert run(tmp_path, operator, KOILA_VERIFY="0").stdout.startswith("wrong\n"), "without it nobody notices"


def test_another_size_is_tried_where_there_are_no_witnesses(tmp_path):
    done = run(tmp_path, "seven", 0, KOILA_MICROBATCH="8")  # named, it begins in micro-batches
    assert done.stdout == "" and "(another size): mine::seven gives other values in micro-batches of 8 rows than of 6" in done.stderr, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("verify", ("first", "every", "1"))
def test_right_numbers_pass(tmp_path, verify):
    done = run(tmp_path, "good", KOILA_VERIFY=verify)
    assert done.stdout == "same\nsame\n" and "check" not in done.stderr, done.stdout + done.stderr[-2000:]


def test_no_file_where_nothing_is_to_be_kept(tmp_path):
    done = run(tmp_path, "mixed")
    assert "no file to send in is kept" in done.stderr, done.stderr[-2000:]


def test_what_is_never_the_same_proves_nothing(tmp_path):
    assert "another size" not in run(tmp_path, "moody", KOILA_MICROBATCH="4").stderr


TINY = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 64).double()
x = torch.randn(16, 8).double().requires_grad_()
(net(x).tanh().sum() * 1e-200).backward()
print(x.grad.square().sum().item(), (x.grad * 1e200).square().sum().item() > 1)
"""


def test_what_is_too_small_to_be_squared_is_rounded_all_the_same():
    environment = clean_environment(koila_environment("rescue", KOILA_MICROBATCH="3"))
    done = subprocess.run([sys.executable, "-c", TINY], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "0.0 True\n", done.stdout + done.stderr[-2000:]
