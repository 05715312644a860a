"""Attention of encoders, and to what they left, in plain torch, row by row."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def row_attention(q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, scale: float) -> Tensor:
    """See `RowAttention`."""
    share = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for first, last in pairwise(query_starts.tolist()):
        keys, values = (x[first:last].float().repeat_interleave(share, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first:last].float() * scale, keys)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out


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
    block, share = key_pages.shape[2], q.shape[1] // key_pages.shape[1]
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for row, ((first, last), length) in enumerate(zip(pairwise(query_starts.tolist()), lengths.tolist(), strict=True)):
        if length == 0 or first == last:
            continue
        pages = table[row, : -(-length // block)].long()
        keys, values = (
            pool[pages].transpose(0, 1).flatten(1, 2)[:, :length].float().repeat_interleave(share, 0)
            for pool in (key_pages, value_pages)
        )
        scores = torch.einsum("qhd,hkd->hqk", q[first:last].float() * scale, keys)
        out[first:last] = torch.einsum("hqk,hkd->qhd", scores.softmax(-1), values)
    return out
