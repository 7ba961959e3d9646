"""Operators that the dispatcher knows, that have a formula for their gradients and no rule of koila's: each is shown to run whole without harm.

Their calls are PyTorch's own: the samples of its databases are run, forward, backward and backward again, and what they call below autograd is written down. sources.json says which sample
calls which operator, so that a test need not run them all; `find` looks for that anew. What no sample calls is called by hand (by_hand.py), or cannot be called here (OUT_OF_REACH).
"""

import dataclasses
import json
import os
from pathlib import Path

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import by_hand
import calls

FILE = Path(__file__).with_name("sources.json")

# Why an operator cannot be called on a machine without that device, or library, or on dense tensors.
OUT_OF_REACH = {
    "mkldnn": "oneDNN's own layout of memory, which koila does not follow", "mps": "a kernel of another device", "miopen": "a kernel of another device", "cudnn": "a kernel of CUDA, reached through an operator with a rule",
    "nested": "nested tensors, which koila does not follow", "padded_tensor": "nested tensors, which koila does not follow", "sparse": "sparse tensors have no rows that are told apart",
    "_test_": "PyTorch's tests of its dispatcher", "overrideable": "for other devices to define", "_thnn_fused": "a kernel of CUDA, reached through an operator with a rule",
    "_values": "sparse tensors have no rows that are told apart", "_indices": "sparse tensors have no rows that are told apart", "_coalesce": "sparse tensors have no rows that are told apart",
}
WHOLE_NAMES = {"values", "indices", "ccol_indices", "col_indices", "crow_indices", "row_indices", "_to_dense"}
KERNELS_OF_CUDA = {"_batch_norm_with_update": "a kernel of CUDA, reached through an operator with a rule", "_fused_dropout": "a kernel of CUDA, reached through an operator with a rule",
                   "_pin_memory": "wants a device", "_lazy_clone": "copies on write, which koila does not follow", "_grid_sampler_2d_cpu_fallback": "PyTorch's own tests call it",
                   "conv_depthwise3d": "a kernel of CUDA, reached through an operator with a rule", "_conv_depthwise2d": "a kernel of CUDA, reached through an operator with a rule",
                   "linear_backward": "a kernel of other devices", "max_pool2d_backward": "a kernel of other devices", "slice_inverse": "wants two views of one memory, as functionalisation makes them", "_new_zeros_with_same_feature_meta": "forward-mode differentiation calls it", "_grid_sampler_2d_cpu_fallback_backward": "PyTorch's own tests call it",
                   "_efficientzerotensor": "zeros without memory, as forward-mode differentiation makes them"}


def formulas():
    """Names in derivatives.yaml, which this release's wheel has in torchgen."""
    import torchgen
    import yaml
    with open(os.path.join(os.path.dirname(torchgen.__file__), "packaged", "autograd", "derivatives.yaml")) as file:
        return {entry["name"].split("(")[0] for entry in yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))}


def operators():
    """Of the dispatcher's own registry: operators with a kernel for autograd that is a formula's. Those with `out=` have none; _foreach_ is an optimizer's."""
    known = formulas()
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::") and name.removeprefix("aten::") in known]
    return sorted(name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "Autograd") and not name.startswith("aten::_foreach_"))


def without_rule():
    """In a process under koila."""
    return [name for name in operators() if not torch.ops.koila.has_rule(name)]


def out_of_reach(name):
    """Why it is not called; "" where it is."""
    base = name.removeprefix("aten::").split(".")[0]
    if name in by_hand.CALLS:
        return ""
    if base in KERNELS_OF_CUDA:
        return KERNELS_OF_CUDA[base]
    if base in WHOLE_NAMES:
        return "sparse tensors have no rows that are told apart"
    return next((why for word, why in OUT_OF_REACH.items() if word in base), "")


def overload(name):
    base, _, which = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), which or "default")


class Recorder(TorchDispatchMode):
    """Keeps the first calls of some operators that have rows."""

    def __init__(self, wanted, at_most=1):
        super().__init__()
        self.wanted, self.at_most, self.seen = wanted, at_most, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name + (f".{func._overloadname}" if func._overloadname != "default" else "")
        rows = [leaf.size(0) for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
        kept = self.seen.setdefault(name, []) if name in self.wanted and max(rows, default=0) > 1 else None
        if kept is not None and len(kept) < self.at_most:
            copied = pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided else leaf, (args, kwargs or {}))
            kept.append(copied)
        return func(*args, **(kwargs or {}))


def run_sample(call):
    """Forward, backward, and backward of that."""
    leaves = calls.fresh(call.tensors)
    found = [t for t in calls.outputs(call.function([t.clone() for t in leaves])) if t.requires_grad]
    wanted = [t for t in leaves + call.parameters if t.requires_grad]
    if not found or not wanted:
        return
    gradients = torch.autograd.grad([t.abs().square().sum() for t in found], wanted, create_graph=True, allow_unused=True)
    gradients = [g for g in gradients if g is not None and g.requires_grad]
    if gradients:
        torch.autograd.grad([g.abs().square().sum() for g in gradients], wanted, allow_unused=True)


def find(wanted, at_most=3, progress=lambda name: None):
    """{operator: [kind, name in the database, dtype, sample]} of the operators of `wanted` that a database's sample calls."""
    found = {}
    for kind, infos, samples in (("operator", calls.operators(), calls.of_operator), ("module", calls.modules(), calls.of_module)):
        for name, info in infos.items():
            progress(name)
            for dtype in [d for d in calls.dtypes(info, name) if d in (torch.float64, torch.float32)][:1]:
                for call in _some(samples(name, info, dtype, list(range(at_most)))):
                    recorder = Recorder(set(wanted) - set(found))
                    try:
                        with recorder:
                            run_sample(call)
                    except Exception:  # not every operator has a second derivative
                        pass
                    for operator in recorder.seen:
                        found.setdefault(operator, [kind, name, str(dtype).removeprefix("torch."), call.sample])
    return found


def _some(samples):
    try:
        yield from samples
    except Exception:  # samples that this machine cannot make
        return


def sources():
    """{operator: source}, of the databases and by hand."""
    return json.loads(FILE.read_text()) | {name: ["by hand"] for name in by_hand.CALLS}


def keep(found):
    """Adds to sources.json."""
    known = json.loads(FILE.read_text()) | found
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known)) + "\n}\n")


def of_kernel(name, source, dtype, picked=None):
    """Calls of the operator `name` itself."""
    op = overload(name)
    if source[0] == "by hand":
        recorded = [(tuple(arguments), keywords) for arguments, keywords in by_hand.CALLS[name]()]
    else:
        kind, entry, dtype, sample = source
        infos, samples = (calls.operators(), calls.of_operator) if kind == "operator" else (calls.modules(), calls.of_module)
        recorder = Recorder({name}, at_most=2)
        for call in samples(entry, infos[entry], getattr(torch, dtype), [sample]):
            try:
                with recorder:
                    run_sample(call)
            except Exception:
                pass
        recorded = recorder.seen.get(name, [])
    for number, arguments in enumerate(recorded):
        leaves, spec = pytree.tree_flatten(arguments)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

        def run(tensors, leaves=leaves, spec=spec):
            new = iter(tensors)
            args, kwargs = pytree.tree_unflatten([next(new) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
            return op(*args, **kwargs)
        call = calls.Call(name, "", tensors[0].dtype if tensors else torch.float64, number, run, [differentiable(t) for t in tensors])
        yield call if has_gradients(call) else dataclasses.replace(call, tensors=tensors)


def differentiable(tensor):
    return tensor.detach().requires_grad_(tensor.dtype.is_floating_point and tensor.layout == torch.strided)


def has_gradients(call):
    """Of all its arguments: an operator says so when it is called, or in backward."""
    try:
        leaves = calls.fresh(call.tensors)
        roots = [t.sum() for t in calls.outputs(call.function([t * 1 if t.requires_grad else t for t in leaves])) if t.requires_grad]
        if roots:
            torch.autograd.grad(roots, [t for t in leaves if t.requires_grad], allow_unused=True)
        return bool(roots)
    except (RuntimeError, NotImplementedError):
        return False
