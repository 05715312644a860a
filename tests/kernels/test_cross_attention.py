"""Cross attention against torch's own, in float64: every query sees all that is kept, and nothing beyond it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.binding import NAN, candidates, kernel


@pytest.mark.parametrize("name", candidates("cross_attention"))
@pytest.mark.parametrize("num_kv", [1, 4])
def test_all_is_seen(name: str, num_kv: int) -> None:
    generator = torch.Generator().manual_seed(num_kv)
    rows, block = [(1, 21), (5, 3), (2, 0), (0, 4), (7, 16)], 8  # queries, tokens to see
    starts = torch.tensor([0, *(queries for queries, _ in rows)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    lengths = torch.tensor([length for _, length in rows], dtype=torch.int32)
    planes = torch.full((2, 12, num_kv, block, 8), NAN)
    table = torch.randperm(12, generator=generator)[: 2 * len(rows)].view(len(rows), 2).to(torch.int32)
    table = torch.cat((table, torch.tensor([[11], [0], [0], [0], [0]], dtype=torch.int32)), -1)
    free = sorted(set(range(12)) - set(table[:, :2].flatten().tolist()))
    table[0, 2] = free[0]
    kept = []
    for row, (_, length) in enumerate(rows):
        kept.append(torch.randn(2, length, num_kv, 8, generator=generator))
        for token in range(length):
            planes[:, table[row, token // block], :, token % block] = kept[-1][:, token]
    q = torch.randn(int(starts[-1]), 4, 8, generator=generator)
    found = kernel("cross_attention", name, "float32")(q, planes[0], planes[1], table, starts, lengths, 0.3)
    for row, (first, last) in enumerate(zip(starts.tolist(), starts.tolist()[1:], strict=False)):
        if rows[row][1] == 0:
            assert (found[first:last] == 0).all()
            continue
        k, v = (x.double().transpose(0, 1) for x in kept[row])
        each = q[first:last].double().transpose(0, 1)
        expected = F.scaled_dot_product_attention(each, k, v, scale=0.3, enable_gqa=True).transpose(0, 1)
        torch.testing.assert_close(found[first:last].double(), expected, rtol=1e-5, atol=1e-5)
