"""Cross attention in Triton: the kernel of paged attention, without the mask."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.paged_attention import Scoring
from octavo.ops.paged_attention.triton import attend


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
