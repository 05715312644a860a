"""Rotary embedding in plain torch."""

from __future__ import annotations

from torch import Tensor


def rope(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> None:
    """See `Rope`."""
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    half = cos.shape[-1]
    for x in (q, k):
        first, second = x[..., :half], x[..., half : 2 * half]
        rotated = (first * cos).addcmul_(second, sin, value=-1)
        second.copy_((second * cos).addcmul_(first, sin))
        first.copy_(rotated)
