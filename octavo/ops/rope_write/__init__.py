"""What attention does with a step's queries, keys and values before it attends: normalize, rotate (Su et al. 2021), write into
pages; and the rotation alone.

Shapes: T tokens, H query heads, K key/value heads, D head size, R <= D rotated features, L positions, P pages in the pool, B
tokens a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.ops.usual import usual_op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadNorms:
    """Root-mean-square norms over each head. q, k: weights [D]."""

    q: Tensor
    k: Tensor
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rotation:
    """Rotary positions; see `Rope` for what these are."""

    positions: Tensor
    table: Tensor
    interleaved: bool = False


class Rope(Protocol):
    """Rotate queries and keys."""

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor, interleaved: bool = False) -> None:
        """Rotate the first R features of q [T, H, D] and k [T, K, D] in place; both may be strided views.

        positions: int64 [T]. table: float32 [L, R], the cosines of the R / 2 angles of a position, then their sines; the
        two may be scaled. interleaved: pair i is features 2i and 2i + 1; otherwise i and i + R / 2 ("neox").
        """
        ...


class RopeWrite(Protocol):
    """Normalize heads, rotate them, and write keys and values into their pages."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norms: HeadNorms | None,
        rotation: Rotation,
        planes: tuple[Tensor, Tensor],
        pages: Tensor,
        offsets: Tensor,
    ) -> Tensor:
        """Return q [T, H, D], normalized and rotated; the q and k that are given may be overwritten.

        q: [T, H, D]. k, v: [T, K, D]. All may be strided views. planes: of keys and of values, and pages and offsets: see
        `PageWrite`.
        """
        ...


ROPE = usual_op("rope", folder="rope_write")
ROPE_WRITE = usual_op("rope_write", native="rope_write")
