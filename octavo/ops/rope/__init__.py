"""Rotary position embedding (Su et al. 2021).

Shapes: T tokens, H query heads, K key heads, D head size, R <= D rotated features, L positions.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.usual import usual_op


class Rope(Protocol):
    """Rotate queries and keys."""

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor, interleaved: bool = False) -> None:
        """Rotate the first R features of q [T, H, D] and k [T, K, D] in place; both may be strided views.

        positions: int64 [T]. table: float32 [L, R], the cosines of the R / 2 angles of a position, then their sines; the
        two may be scaled. interleaved: pair i is features 2i and 2i + 1; otherwise i and i + R / 2 ("neox").
        """
        ...


ROPE = usual_op("rope")
