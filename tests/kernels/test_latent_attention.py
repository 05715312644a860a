"""Latent attention against keys and values spelled out for every head, in float64."""

from __future__ import annotations

import pytest
import torch

from octavo.ops.paged_attention import Scoring
from tests.kernels.binding import NAN, candidates, kernel


@pytest.mark.parametrize("name", candidates("latent_attention"))
@pytest.mark.parametrize("queries", [1, 5, 21])
def test_against_every_head_spelled_out(name: str, queries: int) -> None:
    generator = torch.Generator().manual_seed(queries)
    num_heads, num_latent, num_rotated, block, length = 3, 12, 4, 8, 21
    tokens = torch.randn(length, num_latent + num_rotated, generator=generator)
    q = torch.randn(queries + 1, num_heads, num_latent + num_rotated, generator=generator)
    pages = torch.full((7, 1, 2 * block, num_latent + num_rotated), NAN)[:, :, :block]
    table = torch.tensor([[5, 2, 4]], dtype=torch.int32)
    for position in range(length):
        pages[table[0, position // block], 0, position % block] = tokens[position]
    found = kernel("latent_attention", name, "float32")(
        q,
        pages,
        num_latent,
        table,
        torch.tensor([0, queries], dtype=torch.int32),
        torch.tensor([length], dtype=torch.int32),
        Scoring(scale=0.3),
    )
    assert found.shape == (queries + 1, num_heads, num_latent)
    assert (found[queries:] == 0).all()
    scores = 0.3 * torch.einsum("qhd,kd->hqk", q[:queries].double(), tokens.double())
    hidden = torch.ones(queries, length, dtype=torch.bool).triu(length - queries + 1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    expected = torch.einsum("hqk,kd->qhd", weights, tokens[:, :num_latent].double())
    torch.testing.assert_close(found[:queries].double(), expected, rtol=1e-5, atol=1e-5)
