"""Attention inside rows in plain torch, row by row."""

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
