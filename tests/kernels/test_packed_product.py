"""Packed weights: every kind and instruction set against numbers that the gguf package makes, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from octavo.base.native import LEVELS, NativeLibrary, library
from octavo.device.registry import detect
from octavo.ops.packed_product import PackedProduct
from octavo.ops.packed_product.blocks import PACKED
from octavo.ops.registry import bind
from tests.kernels.binding import poisoned

# Where a block keeps its float16 scales and minima.
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
OUTS = 37
ROWS = (1, 2, 7, 21)


def _library() -> NativeLibrary:
    found = library()
    assert not isinstance(found, str), found
    return found


@pytest.fixture(params=["scalar", "avx2", "vnni"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Lower the instruction set; one that this machine lacks is as the widest that it has."""
    native, order = _library(), list(LEVELS["x86_64"])
    before = native.level
    native.level = min(before, request.param, key=order.index)
    yield native.level
    native.level = before


def _kernel(name: str) -> PackedProduct:
    return bind(detect("cpu").facts, "float32", {"packed_product": name}).packed_product


def _blocks(kind: str, outs: int, ins: int) -> tuple[torch.Tensor, np.ndarray]:
    """Return random blocks, and their numbers [outs, ins] in float32."""
    block, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    raw = np.random.default_rng(3).integers(0, 256, (outs, ins // block, size), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        raw[..., at + 1] = raw[..., at + 1] & 0x83 | 0x28  # both signs, near 1/16
    return torch.from_numpy(raw.copy()), gguf.quants.dequantize(raw.reshape(outs, -1), Type[kind]).reshape(outs, ins)


def _rounded(x: np.ndarray, level: str) -> np.ndarray:
    """Return x as the integer path sees it: groups of 32 in 65,535 steps. Levels with fused products round a step once."""
    groups = x.astype(np.float32).reshape(len(x), -1, 32)
    most = np.abs(groups).max(-1, keepdims=True)
    inverse = np.float32(32767) / most
    steps = np.rint((groups if level == "scalar" else groups.astype(np.float64)) * inverse)
    return (steps.astype(np.float64) * (most / np.float32(32767))).reshape(x.shape)


@pytest.mark.parametrize("kind", sorted(PACKED))
def test_rows_are_bit_for_bit_what_gguf_makes_of_them(kind: str) -> None:
    blocks, numbers = _blocks(kind, OUTS, 512)
    for name in ("torch", "cpu"):
        kernel, weight = _kernel(name), blocks.clone()
        kernel.pack(weight, kind)
        ids = torch.tensor([36, 0, 15, 16, 31, 32, 0, *range(OUTS)])
        with poisoned():
            found = kernel.rows(weight, kind, ids, torch.float32)
        assert np.array_equal(found.numpy().view(np.uint32), numbers[ids].view(np.uint32))
        with poisoned():
            narrow = kernel.rows(weight, kind, ids, torch.bfloat16)
        assert torch.equal(narrow, found.bfloat16())


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("kind", sorted(PACKED))
def test_products(level: str, kind: str, integers: bool) -> None:
    ins = 512 if gguf.GGML_QUANT_SIZES[Type[kind]][0] == 256 else 96
    blocks, numbers = _blocks(kind, OUTS, ins)
    kernel = _kernel("cpu")
    kernel.pack(blocks, kind)
    everything = torch.randn(max(ROWS), ins + 3, generator=torch.Generator().manual_seed(0))
    whole = everything[:, 3:]
    seen = _rounded(whole.numpy(), level) if integers else whole.numpy().astype(np.float64)
    expected = seen @ numbers.astype(np.float64).T
    size = np.abs(seen) @ np.abs(numbers.astype(np.float64)).T
    for rows in ROWS:
        with poisoned():
            found = kernel.product(whole[:rows], blocks, kind, None, torch.float32, integers)
        assert np.max(np.abs(found.numpy() - expected[:rows]) / size[:rows]) < 1e-6
        if rows == max(ROWS):
            # Nobody's numbers depend on who is beside.
            alone = [kernel.product(row[None], blocks, kind, None, torch.float32, integers) for row in whole]
            assert torch.equal(torch.cat(alone), found)


@pytest.mark.parametrize("integers", [False, True])
def test_narrow_types_and_biases(level: str, integers: bool) -> None:
    blocks, numbers = _blocks("Q5_1", OUTS, 64)
    kernel = _kernel("cpu")
    kernel.pack(blocks, "Q5_1")
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    bias = torch.randn(OUTS, generator=torch.Generator().manual_seed(1)).bfloat16()
    seen = _rounded(x.float().numpy(), level) if integers else x.double().numpy()
    expected = torch.from_numpy(seen @ numbers.astype(np.float64).T) + bias.double()
    with poisoned():
        wide = kernel.product(x, blocks, "Q5_1", bias, torch.float32, integers)
        narrow = kernel.product(x, blocks, "Q5_1", bias, torch.bfloat16, integers)
    torch.testing.assert_close(wide.double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(narrow, wide.bfloat16())
    reference = _kernel("torch").product(x, _blocks("Q5_1", OUTS, 64)[0], "Q5_1", bias, torch.float32, integers)
    exact = torch.from_numpy(x.double().numpy() @ numbers.astype(np.float64).T) + bias.double()
    torch.testing.assert_close(reference.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_seen_in_its_row_alone(level: str, integers: bool, value: float) -> None:
    blocks, _ = _blocks("Q4_0", OUTS, 96)
    kernel = _kernel("cpu")
    kernel.pack(blocks, "Q4_0")
    x = torch.randn(6, 96, generator=torch.Generator().manual_seed(0))
    x[2, 50] = value
    x[4] = 0.0
    found = kernel.product(x, blocks, "Q4_0", None, torch.float32, integers)
    assert not found[2].isfinite().any()
    assert found[[0, 1, 3, 5]].isfinite().all()
    assert torch.equal(found[4], torch.zeros(OUTS))


def test_a_team_computes_the_same(level: str) -> None:
    blocks, _ = _blocks("Q4_K", 200, 512)
    kernel = _kernel("cpu")
    kernel.pack(blocks, "Q4_K")
    x = torch.randn(18, 512, generator=torch.Generator().manual_seed(0))
    alone = kernel.product(x, blocks, "Q4_K", None, torch.float32, True)
    _library().resize(3)
    try:
        assert torch.equal(kernel.product(x, blocks, "Q4_K", None, torch.float32, True), alone)
    finally:
        _library().resize(1)
