"""Attention inside rows against torch's own, row by row, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.binding import candidates, kernel


@pytest.mark.parametrize("name", candidates("row_attention"))
@pytest.mark.parametrize("num_kv", [1, 2, 4])
def test_rows_see_themselves_only(name: str, num_kv: int) -> None:
    generator = torch.Generator().manual_seed(num_kv)
    counts = [1, 9, 0, 33]
    starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    q = torch.randn(sum(counts) + 2, 4, 8, generator=generator)
    k, v = torch.randn(2, sum(counts) + 2, num_kv, 8, generator=generator)
    found = kernel("row_attention", name, "float32")(q, k, v, starts, 0.4)
    for first, last in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        each = [x[first:last].double().transpose(0, 1) for x in (q, k, v)]
        expected = F.scaled_dot_product_attention(*each, scale=0.4, enable_gqa=True).transpose(0, 1)
        torch.testing.assert_close(found[first:last].double(), expected, rtol=1e-5, atol=1e-5)
    assert (found[starts[-1] :] == 0).all()
