"""The CPU's stand-ins for CUDA's kernels (tests/placement/stand_ins.cc): results as PyTorch's own meta kernels say, and values as those of the operators that they are kernels of."""

import ctypes
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

BUILD = Path(os.environ.get("KOILA_BUILD", Path(__file__).resolve().parents[2] / "build"))
STAND_INS = BUILD / "tests" / "placement" / "libkernel_stand_ins.so"
pytestmark = pytest.mark.skipif(not STAND_INS.exists(), reason="scripts/setup --tests builds them")
aten = torch.ops.aten


@pytest.fixture(scope="module", autouse=True)
def stand_ins():
    ctypes.CDLL(str(STAND_INS))


def heads(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)), dtype=torch.float32)


CALLS = {
    "flash": lambda q, k: aten._scaled_dot_product_flash_attention(q, k, k, 0.0, True),
    "efficient": lambda q, k: aten._scaled_dot_product_efficient_attention(q, k, k, None, True),
    "efficient without sums": lambda q, k: aten._scaled_dot_product_efficient_attention(q, k, k, None, False),
    "cudnn": lambda q, k: aten._scaled_dot_product_cudnn_attention(q, k, k, None, True),
    "flash, heads last": lambda q, k: aten._flash_attention_forward(q, k, k, None, None, 3, 6, 0.0, False, False),
    "efficient, heads last": lambda q, k: aten._efficient_attention_forward(q, k, k, None, None, None, None, None, 0.0, 0, True),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("rows", [1, 4])
def test_results_are_of_the_sizes_that_the_kernel_gives(name, rows):
    q, k = (heads(rows, 3, 2, 8), heads(rows, 6, 2, 8)) if "last" in name else (heads(rows, 2, 3, 8), heads(rows, 2, 6, 8))
    found, meta = CALLS[name](q, k), CALLS[name](q.to("meta"), k.to("meta"))
    assert len(found) == len(meta)
    for mine, its in zip(found, meta):
        if isinstance(its, int):
            assert mine == its
        elif its is None or mine is None:
            assert mine is None or mine.numel() == 0
        elif mine.numel() > 1 or its.numel() > 1:  # a mask that is not returned, and the state of a generator, are small and differ from release to release
            assert mine.shape == its.shape


@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_those_of_attention(causal):
    q, k, v = (heads(3, 2, 5, 4 + i)[..., :4].double().requires_grad_() for i in range(3))
    bias = heads(3, 2, 5, 5).double().requires_grad_()
    for call, extra in [(lambda: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0], {}),
                        (lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)[0], {}),
                        (lambda: aten._scaled_dot_product_efficient_attention(q, k, v, None if causal else bias, True, 0.0, causal)[0], {} if causal else {"attn_mask": bias}),
                        (lambda: aten._flash_attention_forward(*(t.transpose(1, 2) for t in (q, k, v)), None, None, 5, 5, 0.0, causal, False)[0].transpose(1, 2), {}),
                        (lambda: aten._efficient_attention_forward(*(t.transpose(1, 2) for t in (q, k, v)), None, None, None, None, None, 0.0, int(causal), True)[0].transpose(1, 2), {})]:
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, **extra)
        leaves = [q, k, v, *extra.values()]
        torch.testing.assert_close(call(), expected)
        for mine, its in zip(torch.autograd.grad(call().sin().sum(), leaves), torch.autograd.grad(expected.sin().sum(), leaves)):
            torch.testing.assert_close(mine, its)
