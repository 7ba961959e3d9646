"""The programs of a package's README in small: batches of four, two layers, and every number from 512 on a sixteenth of itself (from 64 on a quarter, where
the suite says so). A program that calls no backward
pass itself gets one from what its modules returned, and a step of SGD."""

import os
import re
from pathlib import Path

import pytest
import torch

TEXT = (Path(os.environ["SUITES_SOURCE"]) / "README.md").read_text()
PROGRAMS = re.findall(r"^```(?:python|py|Python)\n(.*?)^```", TEXT, re.M | re.S)


def smaller(number):
    if number >= 512:
        return number // 16
    return number // 4 if number >= 64 and os.environ.get("SUITES_SMALLER") else number


def small(code):
    code = re.sub(r"\b(\d{2,6})\b(?!\.)", lambda m: str(smaller(int(m[1]))), code)
    code = re.sub(r"\b(\w*depth|num_layers|num_quantizers)(\s*=\s*)(\d+)\b", lambda m: f"{m[1]}{m[2]}{min(int(m[3]), 2)}", code)
    code = re.sub(r"(torch\.(?:randn|rand|zeros|ones)\(\(?)1,", r"\g<1>4,", code)
    code = re.sub(r"(torch\.randint\([^()]*, \()1,", r"\g<1>4,", code)
    return code.replace(".cuda()", "").replace("device='cuda'", "device='cpu'")


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    passes = []
    plain = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *a, **k: (passes.append(1), plain(*a, **k))[1])
    space = {"__name__": "program"}
    exec(compile(small(PROGRAMS[number]), f"README program {number}", "exec"), space)
    modules = [value for value in space.values() if isinstance(value, torch.nn.Module)]
    parameters = list({id(p): p for module in modules for p in module.parameters() if p.requires_grad}.values())
    if not passes:
        def outputs(value):
            if isinstance(value, torch.Tensor):
                return [value] if value.grad_fn is not None and value.is_floating_point() else []
            if isinstance(value, (tuple, list)):
                return [t for part in value for t in outputs(part)]
            return []
        results = [t for name, value in space.items() for t in outputs(value)]
        results = list({id(t): t for t in results}.values())
        if results:
            sum(t.square().mean() for t in results).backward()
    if parameters:
        torch.optim.SGD(parameters, lr=1e-2).step()
