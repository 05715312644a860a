"""Products of few rows with plain weights, and logits, against float64 at odd shapes."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.binding import TOLERANCE, cases, kernel

ROWS = [1, 3, 8, 13]


def _random(*shape: int, dtype: str, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


@pytest.mark.parametrize(("name", "dtype", "rows"), cases("product", ROWS))
@pytest.mark.parametrize(("outs", "ins"), [(1, 1), (37, 80), (70, 259)])
@pytest.mark.parametrize("biased", [False, True])
def test_product(name: str, dtype: str, rows: int, outs: int, ins: int, biased: bool) -> None:
    wide = _random(rows, ins + 5, dtype=dtype, seed=0)
    x, weight = wide[:, 5:], _random(outs, ins, dtype=dtype, seed=1)
    bias = _random(outs, dtype=dtype, seed=2) if biased else None
    found = kernel("product", name, dtype)(x, weight, bias)
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    size = x.double().abs() @ weight.double().abs().T + 1
    assert found.dtype == getattr(torch, dtype)
    assert ((found.double() - expected).abs() <= TOLERANCE[dtype] * size).all()


@pytest.mark.parametrize(("name", "dtype", "rows"), cases("logits", ROWS))
def test_logits(name: str, dtype: str, rows: int) -> None:
    hidden, weight = _random(rows, 70, dtype=dtype, seed=0), _random(133, 70, dtype=dtype, seed=1)
    found = kernel("logits", name, dtype)(hidden, weight)
    expected = hidden.double() @ weight.double().T
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
