"""Runs one call plain and split by koila, and says how they compare. For a process with koila preloaded."""

import dataclasses
import sys
from pathlib import Path

import torch

import calls

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from koila_abi import Koila  # noqa: E402

# Relative to the largest value, by the type of what is compared; what is zero by nature may be off by a thousandth of that.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.complex128: 1e-9, torch.complex64: 1e-5}


@dataclasses.dataclass
class Verdict:
    outcome: str  # "split", "whole", "refused", "wrong", "error"; "random": values are anyone's, and shapes agree; "skipped"
    separable: bool = False
    micro_batch: int = 0
    detail: str = ""
    whole: tuple = ()  # operators that ran at full batch


@dataclasses.dataclass
class Run:
    outputs: list
    gradients: list
    buffers: list
    drew: bool = False  # random numbers
    whole: list = dataclasses.field(default_factory=list)


def run(call, seed, split=(), micro_batch=0, read_first=False):
    koila = torch.ops.koila
    leaves = calls.fresh(call.tensors)
    torch.manual_seed(seed)
    for i in split:
        koila.lazy(leaves[i], 0, micro_batch)
    # Activations, as operators in the middle of a model have them.
    before = torch.get_rng_state()
    found = calls.outputs(call.function([t.clone() for t in leaves]))
    result = Run([], [], [], drew=not torch.equal(before, torch.get_rng_state()))
    if micro_batch:
        result.whole = koila.run_whole()
    if read_first:
        koila.settle()
    roots = [t for t in found if t.requires_grad]
    wanted = [t for t in leaves + call.parameters if t.requires_grad]
    if roots and wanted:
        generator = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(t.shape, dtype=torch.float64, generator=generator).to(t.dtype) for t in roots]
        result.gradients = list(torch.autograd.grad(roots, wanted, cotangents, allow_unused=True))
    koila.settle()
    result.outputs = [t.detach() for t in found]
    result.buffers = [t.detach().clone() for t in call.buffers]
    return result


def difference(expected, found, values=True):
    """What is wrong with `found`, or ""."""
    if (expected is None) != (found is None):
        return f"{'none' if found is None else 'one'}, plain {'none' if expected is None else 'one'}"
    if expected is None:
        return ""
    if expected.dtype != found.dtype or expected.shape != found.shape or expected.layout != found.layout:
        return f"{found.dtype} {tuple(found.shape)} {found.layout}, plain {expected.dtype} {tuple(expected.shape)} {expected.layout}"
    if not values or expected.numel() == 0:
        return ""
    if expected.layout != torch.strided:
        expected, found = expected.to_dense(), found.to_dense()
    if expected.is_quantized:
        expected, found = expected.int_repr(), found.int_repr()
    if torch.equal(expected, found):
        return ""
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return f"{int((expected != found).sum())} entries differ"
    expected, found = expected.to(torch.complex128), found.to(torch.complex128)
    finite = expected.isfinite()
    if not torch.equal(finite, found.isfinite()):
        return "not finite in other places"
    if bool(((expected != found) & ~(expected.isnan() & found.isnan()) & ~finite).any()):
        return "other infinities"
    off, scale = (expected - found)[finite].abs(), expected[finite].abs()
    return f"off by {off.max():.3g} at values up to {scale.max():.3g}" if off.numel() else ""


def compare(expected, found, values):
    for what, one, other in [("output", expected.outputs, found.outputs), ("gradient", expected.gradients, found.gradients),
                             ("buffer", expected.buffers, found.buffers)]:
        if len(one) != len(other):
            return f"{len(other)} {what}s, plain {len(one)}"
        alike = one + (expected.outputs if what == "gradient" else [])
        floor = max((t.abs().max().item() for t in alike if t is not None and t.layout == torch.strided and t.dtype.is_floating_point and t.numel()), default=0)
        for i, (a, b) in enumerate(zip(one, other)):
            text = difference(a, b, values)
            if not text:
                continue
            if text.startswith("off by"):
                off, scale = float(text.split()[2]), float(text.split()[-1])
                if off <= TOLERANCE.get(a.dtype, 1e-2) * max(scale, 0.1 * floor, 1e-3):
                    continue
            return f"{what} {i}: {text}"
    return ""


def check(call):
    """Verdicts, one a way of splitting the call."""
    sets = calls.candidates(call)
    if not sets:
        return [Verdict("skipped", detail="no tensor with rows")]
    try:
        expected = run(call, 1)
        again = run(call, 1)
    except Exception as error:
        torch.ops.koila.settle()
        return [Verdict("skipped", detail=f"plain: {type(error).__name__}: {str(error)[:100]}")]
    if not expected.outputs:
        return [Verdict("skipped", detail="no tensor comes out")]
    fixed = not expected.drew and compare(expected, again, True) == "" and call.name.split()[0] not in calls.UNINITIALISED
    chosen = [(split, True) for split in sets if fixed and calls.separable(call, split, expected.outputs)][:1]
    chosen += [(split, False) for split in sets[:2] if not chosen or split != chosen[0][0]]
    verdicts = []
    for split, separable in chosen:
        rows = call.tensors[split[0]].size(0)
        if rows == 0:
            continue
        for micro_batch in sorted({1, (rows + 1) // 2 if rows > 2 else 1}):
            verdict = Verdict("skipped", separable, micro_batch)
            try:
                found = run(call, 1, split, micro_batch, read_first=micro_batch > 1)
            except torch.OutOfMemoryError as error:
                verdict.outcome, verdict.detail = "refused", str(error)[:200]
                torch.ops.koila.settle()
            except Exception as error:
                verdict.outcome, verdict.detail = "error", f"{type(error).__name__}: {str(error)[:300]}"
                torch.ops.koila.settle()
                torch.ops.koila.run_whole()
            else:
                verdict.detail = compare(expected, found, fixed)
                # A result that is whole is none of an operator's that ran whole where stages made it, or no value went into it.
                whole = bool(found.whole)
                verdict.outcome = "wrong" if verdict.detail else "random" if not fixed else "whole" if whole else "split"
                verdict.whole = tuple(dict.fromkeys(found.whole))
            if verdict.outcome in ("wrong", "error", "refused"):
                verdict.detail = f"tensors {split}, micro-batches of {micro_batch}: {verdict.detail}"
            verdicts.append(verdict)
    return verdicts or [Verdict("skipped", detail="no rows")]


def check_failures(call, allocations=(1, 2, 3, 5, 8, 13)):
    """Verdicts, one for each allocation that fails: the operator stands between two others, and what comes of the step is plain's or an out-of-memory error."""
    koila = Koila()

    def step(inject):
        leaves = calls.fresh(call.tensors)
        torch.manual_seed(1)
        roots = gradients = None
        koila.inject(inject)
        try:
            roots = calls.outputs(call.function([t * 1 if t.is_floating_point() else t.clone() for t in leaves]))
            losses = [t.abs().sum() for t in roots if t.requires_grad]
            wanted = [t for t in leaves if t.requires_grad]
            gradients = list(torch.autograd.grad(losses, wanted, allow_unused=True)) if losses and wanted else []
        finally:
            koila.inject(None)
        torch.ops.koila.settle()
        return Run([t.detach() for t in roots], gradients, [])

    try:
        expected = step(None)
        fixed = compare(expected, step(None), True) == "" and call.name not in calls.UNINITIALISED
    except Exception as error:
        return [Verdict("skipped", detail=f"plain: {type(error).__name__}: {str(error)[:100]}")]
    verdicts = []
    for number in allocations:
        try:
            detail = compare(expected, step(f"nth:{number}"), fixed)
            verdicts.append(Verdict("wrong" if detail else "whole", detail=detail and f"allocation {number} failed: {detail}"))
        except torch.OutOfMemoryError:
            torch.ops.koila.settle()
            verdicts.append(Verdict("refused under failure"))
        except Exception as error:
            torch.ops.koila.settle()
            verdicts.append(Verdict("error", detail=f"allocation {number} failed: {type(error).__name__}: {str(error)[:300]}"))
    torch.ops.koila.run_whole()
    return verdicts
