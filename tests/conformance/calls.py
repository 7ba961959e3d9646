"""Calls to check: PyTorch's own databases of operators (`op_db`) and modules (`module_db`), sample by sample.

A call is what koila may split: a function of a list of tensors, and which of these have rows. The databases say nothing of rows; the plain
operator does: `rows_of` runs it on one row at a time and looks whether its results, put together, are those of the whole.
"""

import copy
import dataclasses
import itertools
import os
import sys
import zlib

import torch
import torch.utils._pytree as pytree

# Values that nobody chose; of a CTC loss the part of its workspace behind the targets.
UNINITIALISED = {"aten::_ctc_loss", "aten::_ctc_loss.Tensor", "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_"}
# These, and kernels by their own names, read beyond the end of tensors that do not fit together: like those that take indices, they are asked in a process that may crash.
UNCHECKED = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"}


@dataclasses.dataclass
class Call:
    name: str  # of the operator, such as "nn.functional.linear"
    variant: str  # "", "in place", "train", "eval"
    dtype: torch.dtype
    sample: int
    function: object  # of the tensors; what it returns may hold anything
    tensors: list
    parameters: list = dataclasses.field(default_factory=list)  # of a module, which `function` reads; their gradients count, and buffers' values
    buffers: list = dataclasses.field(default_factory=list)

    @property
    def title(self):
        return " ".join(filter(None, [self.name, self.variant, str(self.dtype).removeprefix("torch."), f"sample {self.sample}"]))


def operators():
    from torch.testing._internal.common_methods_invocations import op_db
    for module in [m for name, m in sys.modules.items() if name.startswith("torch.testing._internal")]:
        if hasattr(module, "wrapper_set_seed"):  # it hides that an operator draws
            module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {" ".join(filter(None, [op.name, op.variant_test_name])): op for op in op_db}


def modules():
    from torch.testing._internal.common_modules import module_db
    return {f"nn.{info.name.removeprefix('nn.')}": info for info in module_db}


def family(name, info):
    """A heading for the table."""
    kind = type(info).__name__
    if kind == "ModuleInfo":
        return "modules"
    for prefix, title in {"linalg.": "linear algebra", "fft.": "Fourier transforms", "masked.": "masked reductions", "special.": "special functions",
                          "_refs.": "references", "signal.": "windows", "torch.ops.aten.": "internal operators", "geometric": "random numbers"}.items():
        if name.startswith(prefix):
            return title
    if name.startswith("nn.functional."):
        rest = name.removeprefix("nn.functional.")
        for words, title in [(("loss", "cross_entropy", "nll", "kl_div"), "losses"), (("conv", "fold"), "convolutions"), (("pool",), "pooling"),
                             (("norm", "normalize"), "normalisation"), (("attention",), "attention"), (("dropout",), "random numbers"),
                             (("embedding", "linear", "bilinear", "one_hot"), "linear layers and embeddings"),
                             (("interpolate", "upsample", "grid", "pixel", "pad", "channel_shuffle"), "images")]:
            if any(word in rest for word in words):
                return title
        return "activations"
    return {"UnaryUfuncInfo": "elementwise, one operand", "BinaryUfuncInfo": "elementwise, two operands", "ReductionOpInfo": "reductions",
            "SpectralFuncInfo": "Fourier transforms", "ShapeFuncInfo": "shapes, indexing and the rest"}.get(kind, "shapes, indexing and the rest")


def dtypes(info, name):
    supported = info.supported_dtypes("cpu") if hasattr(info, "supported_dtypes") else set(info.dtypes)
    chosen = [d for d in (torch.float64, torch.float32, torch.int64, torch.bool) if d in supported]
    return chosen or sorted((d for d in supported if d.is_floating_point or not d.is_complex), key=str)[:1]


def _flattened(arguments):
    leaves, spec = pytree.tree_flatten(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def rebuild(new):
        new = iter(new)
        return pytree.tree_unflatten([next(new) if isinstance(leaf, torch.Tensor) else copy.copy(leaf) if isinstance(leaf, torch.Generator) else leaf
                                      for leaf in leaves], spec)
    return tensors, rebuild


def _seed(*parts):
    torch.manual_seed(zlib.crc32(repr(parts).encode()))


def of_operator(name, op, dtype, picked=None):
    """`picked`: numbers of samples; None: all."""
    _seed(name, str(dtype))
    floats = dtype.is_floating_point or dtype.is_complex
    samples = op.sample_inputs("cpu", dtype, requires_grad=floats and op.supports_autograd)
    for number, sample in enumerate(samples):
        if picked is not None and number not in picked:
            continue
        tensors, rebuild = _flattened((sample.input, sample.args, sample.kwargs))
        variants = [("", op.op)]
        if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
            variants.append(("in place", op.inplace_variant))
        for variant, function in variants:
            def run(tensors, function=function, rebuild=rebuild):
                first, args, kwargs = rebuild(tensors)
                return function(first, *args, **kwargs)
            yield Call(name, variant, dtype, number, run, tensors)


def of_module(name, info, dtype, picked=None):
    for training in (True, False) if info.train_and_eval_differ else (True,):
        _seed(name, str(dtype), training)
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for number, each in enumerate(inputs):
            if picked is not None and number not in picked:
                continue
            if each.forward_input is None:
                continue
            _seed(name, number)
            made = info.module_cls(*each.constructor_input.args, **each.constructor_input.kwargs)
            if any(isinstance(p, torch.nn.parameter.UninitializedTensorMixin) for p in itertools.chain(made.parameters(), made.buffers())):
                continue  # has no weights to compare before it has run
            module = made.to(dtype).train(training)
            tensors, rebuild = _flattened((each.forward_input.args, each.forward_input.kwargs))
            parameters, buffers = list(module.parameters()), list(module.buffers())
            saved = [t.detach().clone() for t in parameters + buffers]

            def run(tensors, module=module, rebuild=rebuild, saved=saved, held=parameters + buffers):
                with torch.no_grad():
                    for tensor, value in zip(held, saved):
                        tensor.copy_(value)
                args, kwargs = rebuild(tensors)
                return module(*args, **kwargs)
            yield Call(name, "train" if training else "eval", dtype, number, run, tensors, parameters, buffers)


def fresh(tensors):
    """Leaves like these, with storage of their own."""
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]


def outputs(value):
    return [leaf for leaf in pytree.tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def candidates(call):
    """Sets of tensors (by number) whose first dimensions may be the batch, likeliest first."""
    sizes = [t.size(0) if t.dim() > 0 and t.layout == torch.strided else -1 for t in call.tensors]
    found = []
    for size in dict.fromkeys(s for s in sizes if s >= 0):
        found.append([i for i, s in enumerate(sizes) if s == size])
    found += [[i] for i, s in enumerate(sizes) if s >= 0]
    return [list(c) for c in dict.fromkeys(map(tuple, found))][:4]


def _joined(whole, rows):
    """Whether the rows' results come to the whole: put side by side, summed, or each the same."""
    if whole.layout != torch.strided or whole.is_quantized:
        return False
    for dim in range(whole.dim()):
        if all(r.dim() == whole.dim() for r in rows) and sum(r.size(dim) for r in rows) == whole.size(dim):
            if all(r.size(d) == whole.size(d) for r in rows for d in range(whole.dim()) if d != dim) and close(torch.cat(rows, dim), whole):
                return True
    if all(r.shape == whole.shape for r in rows) and whole.dtype != torch.bool:
        return close(sum(rows[1:], rows[0]), whole)
    return False


def close(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and (torch.equal(a, b) or torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True))


def separable(call, split, whole):
    """Whether the plain operator gives `whole` (its results for all rows) from one row at a time; and not by accident, but for other values too."""
    if call.tensors[split[0]].size(0) < 2 or not any(w.numel() for w in whole):
        return False
    indexed = any(not t.dtype.is_floating_point and not t.dtype.is_complex for t in call.tensors)
    if not indexed and call.name.split()[0] not in UNCHECKED and not call.name.startswith("aten::"):
        return _separable_twice(call, split, whole)
    child = os.fork()
    if child == 0:
        os._exit(0 if _separable_twice(call, split, whole) else 1)
    return os.waitpid(child, 0)[1] == 0


def _separable_twice(call, split, whole):
    if not _separable(call, split, whole):
        return False
    generator = torch.Generator().manual_seed(2)
    other = [t.detach() * (0.5 + torch.rand(t.shape, generator=generator, dtype=torch.float64)).to(t.dtype) if t.dtype.is_floating_point else t for t in call.tensors]
    other = dataclasses.replace(call, tensors=other)
    try:
        with torch.no_grad():
            again = outputs(other.function([t.clone() for t in other.tensors]))
    except Exception:  # not every matrix will do
        return True
    return _separable(other, split, again)


def _separable(call, split, whole):
    rows = call.tensors[split[0]].size(0)
    parts = []
    for row in range(rows):
        tensors = [t.detach().narrow(0, row, 1).clone() if i in split else t.detach().clone() for i, t in enumerate(call.tensors)]
        try:
            with torch.no_grad():
                parts.append(outputs(call.function(tensors)))
        except Exception:  # whatever an operator says of a shape that it does not take
            return False
        if len(parts[-1]) != len(whole):
            return False
    return all(_joined(w, [p[i].detach() for p in parts]) for i, w in enumerate(whole))
