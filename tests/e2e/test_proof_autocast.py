"""The check at run time under autocast: roundings of bfloat16 are no error, wherever memory runs out, and a rule that is wrong is found in spite of them."""

import subprocess
import sys
import textwrap

import pytest

from harness import ROOT, clean_environment, koila_environment

PROGRAM = textwrap.dedent("""
    import sys
    sys.path.append(sys.argv[1])
    import torch, torch.nn as nn
    from koila_abi import Koila

    def define(name, forward, backward):
        torch.library.define("mine::" + name, "(Tensor x) -> Tensor")
        torch.library.impl("mine::" + name, "CPU", forward)
        torch.library.register_autograd("mine::" + name, backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "rows", len(inputs[0])))

    define("lost", lambda x: torch.cat([x[:1] * 0, x[1:]]), lambda ctx, g: g)        # the first row of each part
    define("mean", lambda x: x.mean(0), lambda ctx, g: (g / ctx.rows).expand(ctx.rows, 8))  # of each part: its rule says that they add up
    define("good", lambda x: x * 2, lambda ctx, g: g * 2)
    koila = Koila()
    torch.manual_seed(0)
    single, half = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)), nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    gru = nn.GRU(8, 4, batch_first=True, bidirectional=True, num_layers=2)
    modules = nn.ModuleList([single, half, gru])

    def step(inject):
        modules.zero_grad()
        torch.manual_seed(1)
        x = torch.randn(16, 8)
        koila.limit(0, inject)
        try:
            h = single(x)  # single precision, tested where memory runs out within autocast
            with torch.autocast("cpu", torch.bfloat16):
                h = getattr(torch.ops.mine, sys.argv[2])(half(h))
                if h.dim() == 2:
                    h = gru(h.view(-1, 2, 4).repeat(1, 1, 2))[0].flatten(1)
                loss = (h.cumsum(-1) * 3).float().pow(2).mean() + h.abs().mean()
            loss.backward()
        except torch.OutOfMemoryError as error:
            return error
        finally:
            koila.limit(0, None)
        return [loss.item(), *(p.grad.norm().item() for p in modules.parameters() if p.grad is not None)]

    plain = step(None)
    if isinstance(plain, Exception):
        raise plain
    for number in map(int, sys.argv[3].split(",")):
        found = step(f"nth:{number}")
        print("refused" if isinstance(found, Exception) else "same" if all(abs(a - b) < 0.1 * abs(b) for a, b in zip(found, plain)) else f"wrong {found} {plain}")
""")


def run(tmp_path, operator, result, numbers, **more):
    rules = tmp_path / "my.rules"
    rules.write_text(f"mine::{operator}(x: Shard(0)) -> {result}\n")
    environment = clean_environment(koila_environment("rescue", KOILA_RULES=str(rules), KOILA_LADDER="1", **more))
    return subprocess.run([sys.executable, "-c", PROGRAM, ROOT / "scripts" / "lib", operator, ",".join(map(str, numbers))], env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("operator, result", [("lost", "Shard(0)"), ("mean", "Partial")])
def test_a_wrong_rule_is_found_in_bfloat16(tmp_path, operator, result):
    numbers = range(12, 36, 2)
    done = run(tmp_path, operator, result, numbers)
    assert "wrong" not in done.stdout and f"a check found it wrong (rule): mine::{operator} gives " in done.stderr, done.stdout + done.stderr[-2000:]
    assert "wrong" in run(tmp_path, operator, result, numbers, KOILA_VERIFY="0").stdout, "without it nobody notices"


@pytest.mark.parametrize("verify", ("first", "every"))
def test_right_numbers_pass(tmp_path, verify):
    done = run(tmp_path, "good", "Shard(0)", range(4, 60, 3), KOILA_VERIFY=verify)
    assert "a check found" not in done.stderr and "wrong" not in done.stdout and "same" in done.stdout, done.stdout + done.stderr[-2000:]
