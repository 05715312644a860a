"""Page writes in plain torch."""

from __future__ import annotations

from torch import Tensor


def page_write(
    key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, pages: Tensor, offsets: Tensor
) -> None:
    """See `PageWrite`."""
    key_pages[pages, :, offsets] = key
    value_pages[pages, :, offsets] = value
