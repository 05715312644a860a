"""What attention does with a step's queries, keys and values before it attends: normalize, rotate, write into pages.

Shapes: T tokens, H query heads, K key/value heads, D head size, P pages in the pool, B tokens a block.
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


ROPE_WRITE = usual_op("rope_write", native="rope_write")
