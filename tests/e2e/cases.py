"""Many small programs in one process: each says what it computed, or its error, as one JSON line. Run plain and under koila, they are to say the same."""

import json
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy

from harness import clean_environment, koila_environment

HERE = Path(__file__).resolve().parent


def described(value):
    """What a case gave, as JSON: tensors as shape, type and float64 values."""
    import torch
    if isinstance(value, dict):
        return {str(k): described(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [described(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, (int, float, bool, str, type(None))) else str(value)
    value = value.detach()
    if value.is_nested:
        return {"nested": str(value.layout), "parts": [described(t) for t in value.unbind()]}
    found = {"shape": str(tuple(value.shape)), "type": str(value.dtype), "layout": str(value.layout), "device": str(value.device)}
    if value.device.type != "cpu":
        return found
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_quantized:
        value = value.dequantize()
    if value.is_complex():
        value = torch.view_as_real(value.to(torch.complex128).resolve_conj())
    return {**found, "values": value.to(torch.float64).flatten().tolist()}


def main(cases):
    """`cases`: functions by name. Each is called with and without gradients, from one seed."""
    import torch
    warnings.simplefilter("ignore")
    chosen = sys.argv[1:]
    for name, case in cases.items():
        if chosen and name not in chosen:
            continue
        for grad in (True, False):
            torch.manual_seed(0)
            try:
                with torch.set_grad_enabled(grad):
                    said = {"gave": described(case())}
            except Exception as error:
                said = {"error": f"{type(error).__name__}: {str(error)[:150]}"}  # the rest may list keys of the dispatcher
            print(json.dumps({"case": name, "grad": grad, "generator": zlib.crc32(bytes(torch.get_rng_state().tolist())), **said}), flush=True)


def run(program, *names, timeout=300, **environment):
    """What `program`, a file beside this one, says, by case; under koila where there is an environment."""
    extra = koila_environment(environment.pop("KOILA_MODE", "rescue"), **environment) if environment else {}
    done = subprocess.run([sys.executable, str(HERE / program), *names], env={**clean_environment(extra), "PYTHONPATH": str(HERE)}, capture_output=True, text=True,
                          timeout=timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {f"{line['case']}{'' if line['grad'] else ' without gradients'}": line for line in lines}, done.stderr


def differences(plain, koila, tolerance=0.0):
    """Cases that say something else, with both texts."""
    found = []
    for name in plain:
        if name not in koila:
            found.append(f"{name}: missing")
        elif not alike(plain[name], koila[name], tolerance):
            found.append(f"{name}:\n    plain {json.dumps(plain[name])[:400]}\n    koila {json.dumps(koila[name])[:400]}")
    return found


def alike(a, b, tolerance):
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k], tolerance) for k in a)
    if isinstance(a, list):
        if a and all(isinstance(x, float) for x in a) and len(a) == len(b):
            x, y = numpy.array(a), numpy.array(b, dtype=float)
            return bool(numpy.allclose(x, y, rtol=tolerance, atol=tolerance * max(1e-3, numpy.abs(x[numpy.isfinite(x)]).max(initial=0)), equal_nan=True))
        return len(a) == len(b) and all(alike(x, y, tolerance) for x, y in zip(a, b))
    if isinstance(a, float):
        return a == b or abs(a - b) <= tolerance * max(abs(a), 1e-3) or (a != a and b != b)
    return a == b
