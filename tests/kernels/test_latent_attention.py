"""Latent attention against keys and values spelled out for every head, in float64."""

from __future__ import annotations

import pytest
import torch

from octavo.ops.paged_attention import Scoring
from tests.kernels.binding import NAN, TOLERANCE, cases, kernel


@pytest.mark.parametrize(("name", "dtype"), cases("latent_attention"))
@pytest.mark.parametrize("queries", [1, 5, 21])
@pytest.mark.parametrize(("num_heads", "num_latent", "num_rotated"), [(3, 12, 4), (20, 512, 64)])
def test_against_every_head_spelled_out(
    name: str, dtype: str, queries: int, num_heads: int, num_latent: int, num_rotated: int
) -> None:
    generator = torch.Generator().manual_seed(queries)
    block, length, torch_dtype = 8, 21, getattr(torch, dtype)
    tokens = torch.randn(length, num_latent + num_rotated, generator=generator).to(torch_dtype)
    q = torch.randn(queries + 1, num_heads, num_latent + num_rotated, generator=generator).to(torch_dtype)
    pages = torch.full((7, 1, 2 * block, num_latent + num_rotated), NAN, dtype=torch_dtype)[:, :, :block]
    table = torch.tensor([[5, 2, 4]], dtype=torch.int32)
    for position in range(length):
        pages[table[0, position // block], 0, position % block] = tokens[position]
    scale = 1.2 * (num_latent + num_rotated) ** -0.5
    found = kernel("latent_attention", name, dtype)(
        q,
        pages,
        num_latent,
        table,
        torch.tensor([0, queries], dtype=torch.int32),
        torch.tensor([length], dtype=torch.int32),
        Scoring(scale=scale),
    )
    assert found.shape == (queries + 1, num_heads, num_latent)
    assert (found[queries:] == 0).all()
    scores = scale * torch.einsum("qhd,kd->hqk", q[:queries].double(), tokens.double())
    hidden = torch.ones(queries, length, dtype=torch.bool).triu(length - queries + 1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    expected = torch.einsum("hqk,kd->qhd", weights, tokens[:, :num_latent].double())
    bound = max(1e-5, TOLERANCE[dtype])
    torch.testing.assert_close(found[:queries].double(), expected, rtol=bound, atol=bound * float(expected.abs().max()))
