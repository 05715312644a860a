"""Writing the keys and values of a step's tokens into their pages.

Shapes: T tokens, K key/value heads, D head size, P pages in the pool, B tokens a block.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


class PageWrite(Protocol):
    """Scatter tokens into pages."""

    def __call__(
        self, key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, pages: Tensor, offsets: Tensor
    ) -> None:
        """Write token t to place `offsets[t]` of page `pages[t]`.

        key, value: [T, K, D]. key_pages, value_pages: strided views [P, K, B, D]. pages, offsets: int64 [T].
        """
        ...


class PlaneWrite(Protocol):
    """Scatter tokens into one plane."""

    def __call__(self, x: Tensor, plane: Tensor, pages: Tensor, offsets: Tensor) -> None:
        """Write token t of x [T, K, D] to place `offsets[t]` of page `pages[t]` of the strided view [P, K, B, D].

        pages, offsets: int64 [T].
        """
        ...


PAGE_WRITE = Op(
    name="page_write",
    candidates=(
        Candidate(name="triton", path="octavo.ops.page_write.triton:page_write", kinds=("cuda",)),
        native_candidate("plane_write", "octavo.ops.page_write.cpu:page_write"),
        Candidate(name="torch", path="octavo.ops.page_write.reference:page_write"),
    ),
)
PLANE_WRITE = Op(
    name="plane_write",
    candidates=(
        Candidate(name="triton", path="octavo.ops.page_write.triton:plane_write", kinds=("cuda",)),
        native_candidate("plane_write", "octavo.ops.page_write.cpu:plane_write"),
        Candidate(name="torch", path="octavo.ops.page_write.reference:plane_write"),
    ),
)
