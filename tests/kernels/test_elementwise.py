"""Norms, rotation, activation, page writes and page copies against float64, at odd shapes."""

from __future__ import annotations

import pytest
import torch

from octavo.ops.rope_write import HeadNorms, Rotation
from tests.kernels import formulas
from tests.kernels.binding import NAN, TOLERANCE, candidates, cases, kernel

TOKENS = [1, 7, 63, 130]


def _random(*shape: int, dtype: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def _close(found: torch.Tensor, expected: torch.Tensor, dtype: str, roundings: int = 1) -> None:
    assert found.dtype == getattr(torch, dtype)
    rtol = roundings * TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


@pytest.mark.parametrize(("name", "dtype", "tokens"), cases("rms_norm", TOKENS))
@pytest.mark.parametrize("size", [8, 80, 577])
def test_rms_norm(name: str, dtype: str, tokens: int, size: int) -> None:
    x, weight = 3 * _random(tokens, size, dtype=dtype), _random(size, dtype=dtype, seed=1)
    before = x.clone()
    found = kernel("rms_norm", name, dtype)(x, weight, 1e-5)
    _close(found, formulas.rms_norm(x, weight, 1e-5), dtype)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", candidates("rms_norm"))
def test_rms_norm_of_heads_inside_a_wider_row_and_of_zeros(name: str) -> None:
    wide, weight = _random(7, 5, 64, dtype="float32"), _random(64, dtype="float32", seed=1)
    run = kernel("rms_norm", name, "float32")
    _close(run(wide[:, 1:4], weight, 1e-6), formulas.rms_norm(wide[:, 1:4], weight, 1e-6), "float32")
    assert torch.equal(run(torch.zeros(2, 64), weight, 1e-6), torch.zeros(2, 64))


@pytest.mark.parametrize(("name", "dtype", "tokens"), cases("add_rms_norm", TOKENS))
def test_add_rms_norm(name: str, dtype: str, tokens: int) -> None:
    x, residual = _random(tokens, 80, dtype=dtype), 2 * _random(tokens, 80, dtype=dtype, seed=1)
    weight = _random(80, dtype=dtype, seed=2)
    total = (x.double() + residual.double()).to(x.dtype)
    found = kernel("add_rms_norm", name, dtype)(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    _close(found, formulas.rms_norm(total, weight, 1e-6), dtype)


@pytest.mark.parametrize(("name", "dtype"), cases("layer_norm"))
@pytest.mark.parametrize("size", [8, 80, 577])
@pytest.mark.parametrize("terms", ["weight", "bias", "both", "none"])
def test_layer_norm(name: str, dtype: str, size: int, terms: str) -> None:
    x = 3 * _random(63, size, dtype=dtype) + 2
    weight = _random(size, dtype=dtype, seed=1) if terms in ("weight", "both") else None
    bias = _random(size, dtype=dtype, seed=2) if terms in ("bias", "both") else None
    before = x.clone()
    found = kernel("layer_norm", name, dtype)(x, weight, bias, 1e-5)
    _close(found, formulas.layer_norm(x, weight, bias, 1e-5), dtype)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", candidates("layer_norm"))
def test_layer_norm_of_heads_inside_a_wider_row(name: str) -> None:
    wide, weight = _random(7, 5, 64, dtype="float32") + 1, _random(3, 64, dtype="float32", seed=1)
    found = kernel("layer_norm", name, "float32")(wide[:, 1:4], weight, None, 1e-6)
    _close(found, formulas.layer_norm(wide[:, 1:4], weight, None, 1e-6), "float32")


@pytest.mark.parametrize(("name", "dtype", "tokens"), cases("add_layer_norm", TOKENS))
def test_add_layer_norm(name: str, dtype: str, tokens: int) -> None:
    x, residual = _random(tokens, 80, dtype=dtype), 2 * _random(tokens, 80, dtype=dtype, seed=1)
    weight, bias = _random(2, 80, dtype=dtype, seed=2)
    total = (x.double() + residual.double()).to(x.dtype)
    found = kernel("add_layer_norm", name, dtype)(x, residual, weight, bias, 1e-6)
    assert torch.equal(residual, total)
    _close(found, formulas.layer_norm(total, weight, bias, 1e-6), dtype)


@pytest.mark.parametrize(("name", "dtype", "tokens"), cases("rope", TOKENS))
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "rotated"), [(1, 1, 8, 8), (3, 1, 64, 64), (9, 3, 80, 32)])
def test_rope(name: str, dtype: str, tokens: int, heads: int, kv_heads: int, dim: int, rotated: int) -> None:
    angles = 1.0 / 100.0 ** (torch.arange(rotated // 2, dtype=torch.float64) / rotated * 2)
    turns = torch.arange(200, dtype=torch.float64)[:, None] * angles
    table = torch.cat((turns.cos(), turns.sin()), -1).float()
    positions = torch.randint(200, (tokens,), generator=torch.Generator().manual_seed(3))
    # Views of one product, as the projection gives them.
    fused = _random(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, v = fused.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    q, k, untouched = q.unflatten(-1, (heads, dim)), k.unflatten(-1, (kv_heads, dim)), v.clone()
    expected = [formulas.rotated(x, positions, angles) for x in (q, k)]
    assert kernel("rope", name, dtype)(q, k, positions, table) is None
    _close(q, expected[0], dtype)
    _close(k, expected[1], dtype)
    assert torch.equal(v, untouched)


@pytest.mark.parametrize(("name", "dtype", "tokens"), cases("gated_activation", TOKENS))
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_gated_activation(name: str, dtype: str, tokens: int, activation: str) -> None:
    fused = 3 * _random(tokens, 2 * 77, dtype=dtype)
    gate, up = fused.split(77, -1)
    before = fused.clone()
    found = kernel("gated_activation", name, dtype)(gate, up, activation)
    _close(found, formulas.activated(gate, activation) * up.double(), dtype)
    assert torch.equal(fused, before)


@pytest.mark.parametrize(("name", "dtype"), cases("activation"))
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activation(name: str, dtype: str, activation: str) -> None:
    x = 3 * _random(63, 77, dtype=dtype)
    before = x.clone()
    _close(kernel("activation", name, dtype)(x, activation), formulas.activated(x, activation), dtype)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("name", "dtype", "tokens"), cases("page_write", TOKENS))
@pytest.mark.parametrize(("kv_heads", "dim"), [(1, 8), (3, 64), (9, 80)])
def test_page_write(name: str, dtype: str, tokens: int, kv_heads: int, dim: int) -> None:
    block, num_pages = 16, 40
    size = kv_heads * block * dim
    pool = torch.full((num_pages, 5 * size), NAN, dtype=getattr(torch, dtype))
    key_pages, value_pages = (
        pool[:, first * size : (first + 1) * size].unflatten(1, (kv_heads, block, dim)) for first in (1, 3)
    )
    key, value = _random(2, tokens, kv_heads, dim, dtype=dtype)
    places = torch.randperm(num_pages * block, generator=torch.Generator().manual_seed(4))[:tokens]
    pages, offsets = places // block, places % block
    kernel("page_write", name, dtype)(key, value, key_pages, value_pages, pages, offsets)
    for token, (page, offset) in enumerate(zip(pages.tolist(), offsets.tolist(), strict=True)):
        assert torch.equal(key_pages[page, :, offset], key[token])
        assert torch.equal(value_pages[page, :, offset], value[token])
    assert int((~pool.isnan()).sum()) == 2 * tokens * kv_heads * dim, "something else was written"


@pytest.mark.parametrize(("name", "dtype", "tokens"), cases("rope_write", TOKENS))
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "rotated"), [(1, 1, 8, 8), (9, 3, 80, 32), (6, 2, 64, 64)])
@pytest.mark.parametrize(("normalized", "interleaved"), [(True, False), (False, True), (True, True)])
def test_rope_write(
    name: str,
    dtype: str,
    tokens: int,
    heads: int,
    kv_heads: int,
    dim: int,
    rotated: int,
    normalized: bool,
    interleaved: bool,
) -> None:
    block, num_pages, size = 16, 40, kv_heads * 16 * dim
    pool = torch.full((num_pages, 5 * size), NAN, dtype=getattr(torch, dtype))
    planes = [pool[:, at * size : (at + 1) * size].unflatten(1, (kv_heads, block, dim)) for at in (1, 3)]
    columns = torch.randperm(num_pages * block, generator=torch.Generator().manual_seed(4))[:tokens]
    # A column of a wider table, as a layer in the second of three pages a block sees it.
    pages, offsets = (columns // block)[:, None].repeat(1, 3)[:, 1], columns % block
    angles = 1.0 / 100.0 ** (torch.arange(rotated // 2, dtype=torch.float64) / rotated * 2)
    turns = torch.arange(200, dtype=torch.float64)[:, None] * angles
    positions = torch.randint(200, (tokens,), generator=torch.Generator().manual_seed(3))
    rotation = Rotation(
        positions=positions, table=torch.cat((turns.cos(), turns.sin()), -1).float(), interleaved=interleaved
    )
    norms = HeadNorms(q=_random(dim, dtype=dtype, seed=1), k=_random(dim, dtype=dtype, seed=2), eps=1e-5)
    fused = 3 * _random(tokens, heads + 2 * kv_heads, dim, dtype=dtype)
    q, k, v = fused.split([heads, kv_heads, kv_heads], 1)
    expected, before = [q.double(), k.double()], v.clone()
    if normalized:
        # Rounded between, as the reference does.
        weights = norms.q, norms.k
        expected = [formulas.rms_norm(x, weight, 1e-5).to(q.dtype) for x, weight in zip((q, k), weights, strict=True)]
    # Pairs side by side are pairs apart in another order.
    order = torch.arange(dim)
    if interleaved:
        order[:rotated] = torch.cat((torch.arange(0, rotated, 2), torch.arange(1, rotated, 2)))
    expected = [formulas.rotated(x[..., order], positions, angles)[..., order.argsort()] for x in expected]
    run = kernel("rope_write", name, dtype)
    found = run(q, k, v, norms if normalized else None, rotation, tuple(planes), pages, offsets)
    _close(found, expected[0], dtype, 4)
    keys, values = (plane[pages, :, offsets] for plane in planes)
    _close(keys, expected[1], dtype, 4)
    assert torch.equal(values, before)
    assert int((~pool.isnan()).sum()) == 2 * tokens * kv_heads * dim, "something else was written"


@pytest.mark.parametrize("name", candidates("page_copy"))
@pytest.mark.parametrize("count", [0, 1, 7])
def test_page_copy(name: str, count: int) -> None:
    pool = torch.randint(256, (20, 333), dtype=torch.uint8)
    before = pool.clone()
    sources, targets = torch.tensor([4, 4, 9, 0, 19, 5, 6][:count], dtype=torch.int64), torch.arange(10, 10 + count)
    kernel("page_copy", name, "float32")(pool, sources, targets)
    before[targets] = before[sources]
    assert torch.equal(pool, before)


@pytest.mark.parametrize("name", candidates("likeliest"))
@pytest.mark.parametrize("size", [1, 7, 64, 131, 5000])
def test_likeliest(name: str, size: int) -> None:
    wide = _random(9, 2 * size, dtype="float32")
    logits = wide[:, :size]
    logits[1, size // 2] = NAN
    logits[2, size // 3] = float("inf")
    logits[3] = float("-inf")
    logits[4, size // 2 :] = 9.0
    logits[5, : size - 1] = float("-inf")
    ids, ok = kernel("likeliest", name, "float32")(logits)
    assert ids.dtype == torch.int64
    assert ok.tolist() == [True, False, False, False, True, True, True, True, True]
    assert ids[4:6].tolist() == [size // 2, size - 1]
    assert ids[6:].tolist() == logits[6:].argmax(1).tolist()
    assert 0 <= int(ids.min()) <= int(ids.max()) < size


@pytest.mark.parametrize("name", candidates("append"))
def test_append(name: str) -> None:
    history, lengths = torch.arange(50, dtype=torch.int32).view(5, 10), torch.tensor([3, 4, 10, 0, 1])
    wide = torch.tensor([[1, 2, 0, 4, 3], [4, 10, 3, 1, 9], [77, 78, 79, 80, 81]])
    ok = torch.tensor([True, True, False, True, True])
    expected = history.clone()
    expected[1, 4], expected[3, 9] = 77, 81
    chosen = kernel("append", name, "float32")(history, lengths, *wide, ok)
    assert chosen.tolist() == [[77, 78, 79, 80, 81], [1, 1, 0, 1, 1]]
    assert torch.equal(history, expected)
    assert lengths.tolist() == [3, 5, 10, 10, 1]
