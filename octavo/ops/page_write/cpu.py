"""Page writes by the processor's kernels."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.native import NativeOp, packed

_PLANE_WRITE = NativeOp("plane_write", "pppp qqq qqqqq qq")


def page_write(
    key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, pages: Tensor, offsets: Tensor
) -> None:
    """See `PageWrite`."""
    plane_write(key, key_pages, pages, offsets)
    plane_write(value, value_pages, pages, offsets)


def plane_write(x: Tensor, plane: Tensor, pages: Tensor, offsets: Tensor) -> None:
    """See `PlaneWrite`."""
    x = packed(x)
    assert plane.stride(3) == 1 and x.dtype == plane.dtype
    size = x.itemsize
    strides = (
        size * stride for stride in (x.stride(0), x.stride(1), plane.stride(0), plane.stride(1), plane.stride(2))
    )
    shape = x.shape[0], x.shape[1], x.shape[2] * size
    _PLANE_WRITE(x, plane, pages, offsets, *shape, *strides, pages.stride(0), offsets.stride(0))
