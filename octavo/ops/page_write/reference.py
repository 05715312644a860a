"""Page writes and copies in plain torch."""

from __future__ import annotations

from torch import Tensor


def page_write(
    key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, pages: Tensor, offsets: Tensor
) -> None:
    """See `PageWrite`."""
    plane_write(key, key_pages, pages, offsets)
    plane_write(value, value_pages, pages, offsets)


def plane_write(x: Tensor, plane: Tensor, pages: Tensor, offsets: Tensor) -> None:
    """See `PlaneWrite`."""
    plane[pages, :, offsets] = x


def page_copy(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """See `PageCopy`."""
    pool.index_copy_(0, targets, pool.index_select(0, sources))
