"""Writing the keys and values of a step's tokens into their pages; and copying whole pages (forks, state checkpoints, tiers).

Shapes: T tokens, K key/value heads, D head size, P pages in the pool, B tokens a block, N bytes a page, C copies.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.usual import usual_op


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


class PageCopy(Protocol):
    """Copy pages that do not depend on each other."""

    def __call__(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copy page `sources[i]` to page `targets[i]` of pool, uint8 [P, N].

        sources, targets: int64 [C]; no target is a source or another's target.
        """
        ...


PAGE_WRITE = usual_op("page_write", native="plane_write")
PLANE_WRITE = usual_op("plane_write", folder="page_write", native="plane_write")
PAGE_COPY = usual_op("page_copy", folder="page_write")
