"""Paged attention by the processor's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.native import DTYPES, NativeOp, packed
from octavo.ops.paged_attention import Scoring, Span

_PAGED_ATTENTION = NativeOp("paged_attention", "ppp ppp ppp qqqqqqqqq qqqqqqqqqq q dd ppq")
# As csrc/cpu/paged_attention.cpp has it.
_MOST_DIM = 1024


def paged_attention(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scoring: Scoring,
    span: Span | None = None,
) -> Tensor:
    """See `PagedAttention`; here values may have another size than keys, and every row reads what it shares for itself."""
    q, (_, num_kv_heads, block, dim) = packed(q), key_pages.shape
    assert all(pages.stride(3) == 1 and pages.dtype == q.dtype for pages in (key_pages, value_pages))
    assert query_starts.is_contiguous() and lengths.is_contiguous() and dim <= _MOST_DIM
    out = torch.empty((*q.shape[:2], value_pages.shape[3]), dtype=q.dtype)
    sinks = scoring.sinks
    _PAGED_ATTENTION(
        *(q, key_pages, value_pages, table, query_starts, lengths, scoring.slopes, sinks, out),
        *(DTYPES[q.dtype], DTYPES[q.dtype if sinks is None else sinks.dtype], q.shape[0], len(lengths), q.shape[1]),
        *(num_kv_heads, dim, value_pages.shape[3], block),
        *(*q.stride()[:2], *key_pages.stride()[:3], *value_pages.stride()[:3], *table.stride()),
        scoring.window or 0,
        scoring.scale,
        scoring.softcap or 0.0,
        *((None, None, 0) if span is None else (span.table, span.skips, span.table.stride(0))),
    )
    return out
