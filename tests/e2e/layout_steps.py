"""Tensors of every layout and kind that PyTorch has, made from plain ones and made plain again. See cases.py."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor

import cases

torch.manual_seed(1)
LAYER = nn.Linear(4, 4)
ROWS = torch.randn(6, 4)
PARTS = [torch.randn(i % 3 + 1, 4) for i in range(6)]
HOLES = torch.where(torch.randn(6, 4).abs() < 0.5, 0.0, ROWS)
CASES = {}


def add(name, function):
    assert name not in CASES, name
    CASES[name] = function


def backward(loss):
    """The loss, and the layer's gradients where there are gradients."""
    LAYER.zero_grad()
    if not loss.requires_grad:
        return loss
    loss.backward()
    return [loss, *(None if p.grad is None else p.grad.clone() for p in LAYER.parameters())]


def padded(layout):
    h = [LAYER(t) for t in PARTS]
    return backward(torch.nested.to_padded_tensor(torch.nested.as_nested_tensor(h, layout=layout) * 2, 0.0).pow(2).sum())


def half_nested(layout):
    """Rows that are split, or may be, before and after."""
    h = torch.tanh(LAYER(ROWS)).unsqueeze(1)
    nested = torch.nested.as_nested_tensor([row.expand(1 + i % 3, -1) for i, row in enumerate(h.unbind())], layout=layout)
    return backward((torch.nested.to_padded_tensor(nested, 0.0).sum(1) * torch.tanh(LAYER(ROWS))).pow(2).mean())


for layout in (torch.strided, torch.jagged):
    def nested(layout=layout):
        return torch.nested.nested_tensor(PARTS, layout=layout)

    for name, function in {
        "nested_tensor": nested,
        "requires_grad": lambda layout=layout: torch.nested.nested_tensor(PARTS, layout=layout, requires_grad=True).requires_grad,
        "as_nested_tensor": lambda layout=layout: torch.nested.as_nested_tensor([LAYER(t) for t in PARTS], layout=layout),
        "to_padded_tensor": lambda layout=layout: padded(layout),
        "half of a step": lambda layout=layout: half_nested(layout),
        "linear": lambda n=nested: LAYER(n()),
        "unbind": lambda n=nested: n().unbind(),
        "clone": lambda n=nested: n().clone(),
        "zeros_like": lambda n=nested: torch.zeros_like(n()),
        "rand_like": lambda n=nested: torch.rand_like(n()),
        "dropout": lambda n=nested: F.dropout(n()),
        "repr": lambda n=nested: repr(n()),
        "narrow": lambda layout=layout: torch.nested.narrow(ROWS.view(2, 3, 4), 1, torch.tensor([0, 1]), torch.tensor([2, 2]), layout=layout),
        "sum": lambda n=nested: n().sum(-1, keepdim=True),
        "list": lambda n=nested: torch.cat([t for t in n().unbind()]),
    }.items():
        add(f"{layout} {name}", function)

ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
PADDING = torch.arange(5) >= torch.tensor([[2], [5], [3]])
TOKENS = torch.randn(3, 5, 8)
add("encoder with padding", lambda: ENCODER(TOKENS, src_key_padding_mask=PADDING))
add("nested_from_mask", lambda: torch._nested_tensor_from_mask(TOKENS, ~PADDING))
add("nested_from_jagged", lambda: torch.nested.nested_tensor_from_jagged(torch.randn(10, 4), torch.tensor([0, 3, 10])))

for kind, convert in {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "csc": torch.Tensor.to_sparse_csc,
                      "bsr": lambda t: t.to_sparse_bsr((2, 2)), "bsc": lambda t: t.to_sparse_bsc((2, 2))}.items():
    for name, function in {
        "made": lambda c=convert: c(HOLES),
        "of a layer": lambda c=convert: c(LAYER(ROWS)),
        "there and back": lambda c=convert: backward(c(LAYER(ROWS)).to_dense().pow(2).mean()),
        "product": lambda c=convert: c(HOLES) @ torch.ones(4, 3),
        "product with a layer": lambda c=convert: backward((c(HOLES.t().contiguous()) @ LAYER(ROWS)).pow(2).mean()),
        "scaled": lambda c=convert: c(HOLES) * 2,
        "sum": lambda c=convert: c(HOLES) + c(HOLES),
        "relu": lambda c=convert: torch.relu(c(HOLES)),
        "clone": lambda c=convert: c(HOLES).clone(),
        "in place": lambda c=convert: c(HOLES.clone()).mul_(2),
        "zero_": lambda c=convert: c(HOLES.clone()).zero_(),
        "parameter": lambda c=convert: nn.Parameter(c(HOLES)).requires_grad,
        "dropout": lambda c=convert: F.dropout(c(HOLES)),
    }.items():
        add(f"{kind} {name}", function)
for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
    for name, function in {
        "zeros": lambda layout=layout: torch.zeros(4, 4, layout=layout),
        "many zeros": lambda layout=layout: torch.zeros(400, 400, layout=layout).sum(),
        "zeros_like": lambda layout=layout: torch.zeros_like(ROWS, layout=layout),
        "new_zeros": lambda layout=layout: ROWS.new_zeros((6, 4), layout=layout),
        "ones": lambda layout=layout: torch.ones(4, 4, layout=layout),
        "full": lambda layout=layout: torch.full((4, 4), 1.0, layout=layout),
        "beside a step": lambda layout=layout: backward(LAYER(ROWS).pow(2).mean() + torch.zeros(6, 4, layout=layout).to_dense().sum()),
    }.items():
        add(f"{layout} {name}", function)
add("new_zeros of sparse", lambda: HOLES.to_sparse().new_zeros((6, 4)))
add("sparse embedding", lambda: (lambda e: [e(torch.tensor([1, 2, 3])).sum().backward() if torch.is_grad_enabled() else None, e.weight.grad])(nn.Embedding(10, 4, sparse=True)))
add("sparse.mm", lambda: backward(torch.sparse.mm(HOLES.to_sparse(), LAYER.weight).pow(2).mean()))
add("sparse softmax", lambda: torch.sparse.softmax(HOLES.to_sparse(), 1))
add("sparse tensor of a layer", lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), LAYER(ROWS)[0, :2], (2, 2)).to_dense())
add("mkldnn", lambda: ROWS.to_mkldnn())
add("mkldnn of a layer", lambda: LAYER(ROWS).to_mkldnn().relu().to_dense())
add("mkldnn clone", lambda: ROWS.to_mkldnn().clone())
add("quantized", lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8))
add("quantized by channel", lambda: torch.quantize_per_channel(ROWS, torch.full((4,), 0.1), torch.zeros(4, dtype=torch.long), 1, torch.qint8))
add("quantized of a layer", lambda: torch.quantize_per_tensor(LAYER(ROWS), 0.1, 0, torch.qint8).dequantize())
add("quantized relu", lambda: torch.relu(torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8)))
add("quantized view", lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8).view(-1)[:3])
add("fake quantized", lambda: backward(torch.fake_quantize_per_tensor_affine(LAYER(ROWS), 0.1, 0, 0, 255).sum()))
add("float8", lambda: LAYER(ROWS).to(torch.float8_e4m3fn).to(torch.float32))
add("conjugated", lambda: torch.view_as_real((LAYER(ROWS) * 1j).conj().resolve_conj()))
add("vmap", lambda: torch.vmap(lambda x: LAYER(x).relu())(ROWS))
add("vmap with draws", lambda: torch.vmap(lambda x: x + torch.randn(4), randomness="different")(ROWS))
add("func.grad", lambda: torch.func.grad(lambda w: F.linear(ROWS, w).pow(2).sum())(LAYER.weight.detach()))
add("func.jacrev", lambda: torch.func.jacrev(lambda x: LAYER(x).tanh())(ROWS[0]))
add("func.functionalize", lambda: torch.func.functionalize(lambda x: x.add_(1).view(-1))(ROWS.clone()))
add("two tensors", lambda: (lambda t: [t.a, t.b])(F.linear(TwoTensor(ROWS, ROWS * 2), LAYER.weight)))
add("masked", lambda: torch.masked.masked_tensor(ROWS, ROWS > 0).sum().get_data())
add("a subclass without dispatch", lambda: LAYER(ROWS.as_subclass(type("Sub", (torch.Tensor,), {}))).relu().as_subclass(torch.Tensor))
add("func.jvp", lambda: torch.func.jvp(lambda x: x.tanh(), (ROWS,), (ROWS,)))  # the last: koila stays out after it


if __name__ == "__main__":
    cases.main(CASES)
