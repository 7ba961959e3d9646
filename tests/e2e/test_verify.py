"""KOILA_VERIFY finds a rule wrong before it does any harm, and says nothing of those that are right."""

import subprocess
import sys
import textwrap

import pytest

from harness import Case, assert_equal, clean_environment, koila_environment, plain, run as run_case
from selection import only

SCRIPT = textwrap.dedent("""
    import torch, torch.nn as nn, torch.nn.functional as F

    torch.library.define("mine::mixed", "(Tensor x) -> Tensor")
    torch.library.impl("mine::mixed", "CPU", lambda x: x.softmax(0))
    torch.library.register_autograd("mine::mixed", lambda ctx, g: g * 2, setup_context=lambda ctx, inputs, output: None)
    torch.library.define("mine::bent", "(Tensor x) -> Tensor")  # its values are each row's own, its gradient is not
    torch.library.impl("mine::bent", "CPU", lambda x: x * 2)
    torch.library.register_autograd("mine::bent", lambda ctx, g: g * 2 + g.sum(0), setup_context=lambda ctx, inputs, output: None)
    import sys
    operator = getattr(torch.ops.mine, sys.argv[1])
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    for step in range(2):
        x = torch.randn(8, 4)
        F.mse_loss(operator(torch.tanh(model(x))), x).backward()
    print("done")
""")


def run(tmp_path, operator, rule, **more):
    rules = tmp_path / "my.rules"
    rules.write_text(rule + "\n")
    environment = clean_environment(koila_environment("rescue", 3, KOILA_RULES=str(rules), **more))
    return subprocess.run([sys.executable, "-c", SCRIPT, operator], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("operator, text", [("mixed", "gives other values"), ("bent", "gives another gradient")])
def test_a_wrong_rule_is_refused(tmp_path, operator, text):
    done = run(tmp_path, operator, f"mine::{operator}(x: Shard(0)) -> Shard(0)", KOILA_VERIFY="every")
    assert "OutOfMemoryError" in done.stderr
    assert f"mine::{operator} {text}" in done.stderr
    assert "report this as a bug" in done.stderr
    assert run(tmp_path, operator, f"mine::{operator}(x: Shard(0)) -> Shard(0)", KOILA_VERIFY="0").stdout == "done\n", "without it nobody notices"


def test_without_a_rule_there_is_nothing_to_find(tmp_path):
    assert run(tmp_path, "mixed", "", KOILA_VERIFY="1").stdout == "done\n"


@pytest.mark.parametrize("rows", only([2], [1, 2, 5]))
@pytest.mark.parametrize("family", ["cnn", "gpt", "lstm_time_major", "batch_norm_unet", "clip", "dice", "moco"])
def test_right_rules_pass(family, rows):
    case = Case(family, "adamw", dtype="float64")
    result = run_case(case, "rescue", microbatch=rows, KOILA_VERIFY="every")
    assert_equal(plain(case), result, case.tolerance)
    assert result.regions > 0
