"""Copying whole pages inside a pool: forks, state checkpoints, tiers.

Shapes: P pages in the pool, N bytes a page, C copies.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.usual import usual_op


class PageCopy(Protocol):
    """Copy pages that do not depend on each other."""

    def __call__(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copy page `sources[i]` to page `targets[i]` of pool, uint8 [P, N].

        sources, targets: int64 [C]; no target is a source or another's target.
        """
        ...


PAGE_COPY = usual_op("page_copy")
