"""Rotary embedding in plain torch."""

from __future__ import annotations

from torch import Tensor


def rope(q: Tensor, k: Tensor, positions: Tensor, table: Tensor, interleaved: bool = False) -> None:
    """See `Rope`."""
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    size = table.shape[-1]
    for x in (q, k):
        pairs = x[..., :size].unflatten(-1, (-1, 2) if interleaved else (2, -1))
        first, second = pairs.unbind(-1 if interleaved else -2)
        rotated = (first * cos).addcmul_(second, sin, value=-1)
        second.copy_((second * cos).addcmul_(first, sin))
        first.copy_(rotated)
