"""Attention of models with an encoder, which hides nothing: inside the rows of its input, of which nothing is kept, and of a
mixed batch over what it left in pages.

Shapes: T tokens in the step, R rows, H query heads, K key/value heads, D head size, P pages in the pool, B tokens a block, C
columns of the table.
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


class CrossAttention(Protocol):
    """Attention over pages, without a mask."""

    def __call__(
        self,
        q: Tensor,
        key_pages: Tensor,
        value_pages: Tensor,
        table: Tensor,
        query_starts: Tensor,
        lengths: Tensor,
        scale: float,
    ) -> Tensor:
        """Return [T, H, D] in q's dtype, accumulated in float32; zeros for rows that have nothing to see.

        q: [T, H, D]. key_pages, value_pages: strided views [P, K, B, D]. table: int32 [R, C], a row's block i lies in page
        `table[r, i]`. query_starts: int32 [R + 1]. lengths: int32 [R], tokens to see, whatever the row's own length.
        """
        ...


ROW_ATTENTION = usual_op("row_attention", folder="encoder_attention", recordable=False)
CROSS_ATTENTION = usual_op("cross_attention", folder="encoder_attention", recordable=False)
