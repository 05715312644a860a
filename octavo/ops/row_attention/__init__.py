"""Attention of every token to all tokens of its own row, before and after it, of which nothing is kept (encoders).

Shapes: T tokens in the step, R rows, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.usual import usual_op


class RowAttention(Protocol):
    """Attention inside rows, in both directions."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, scale: float) -> Tensor:
        """Return [T, H, D] in q's dtype, accumulated in float32; zeros for tokens that belong to no row.

        q: [T, H, D]. k, v: [T, K, D]. query_starts: int32 [R + 1], where each row's tokens begin.
        """
        ...


ROW_ATTENTION = usual_op("row_attention", recordable=False)
