"""Attention of encoders, and to what they left, in Triton: the kernel of paged attention without its mask."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.paged_attention import Scoring
from octavo.ops.paged_attention.triton import attend


def row_attention(q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, scale: float) -> Tensor:
    """See `RowAttention`."""
    if k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    return attend(q, k.unsqueeze(2), v.unsqueeze(2), None, query_starts, None, Scoring(scale=scale), causal=False)


def cross_attention(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """See `CrossAttention`."""
    scoring = Scoring(scale=scale)
    return attend(q, key_pages, value_pages, table, query_starts, lengths, scoring, causal=False)
