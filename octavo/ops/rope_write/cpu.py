"""Norms of heads, rotation and page writes by one kernel of the processor's."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.native import DTYPES, NativeOp, packed
from octavo.ops.rope_write import HeadNorms, Rotation

_ROPE_WRITE = NativeOp("rope_write", "ppp pp pp pp pp qqqqqqqq qqqqqqqq qqqqqq d")
# As csrc/cpu/rope_write.cpp has it.
_MOST_DIM = 1024


def rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: HeadNorms | None,
    rotation: Rotation,
    planes: tuple[Tensor, Tensor],
    pages: Tensor,
    offsets: Tensor,
) -> Tensor:
    """See `RopeWrite`; q is overwritten, k is not."""
    q, k, v, (keys, values) = packed(q), packed(k), packed(v), planes
    assert all(tensor.dtype == q.dtype for tensor in (k, v, keys, values)) and q.shape[2] <= _MOST_DIM
    assert keys.stride(3) == values.stride(3) == 1
    weights = (None, None) if norms is None else (norms.q, norms.k)
    positions, table = rotation.positions, rotation.table
    assert positions.is_contiguous() and table.is_contiguous()
    weight_dtype = q.dtype if norms is None else norms.q.dtype
    _ROPE_WRITE(
        *(q, k, v, *weights, positions, table, keys, values, pages, offsets),
        *(DTYPES[q.dtype], DTYPES[weight_dtype], *q.shape[:2], k.shape[1], q.shape[2]),
        *(table.shape[1], rotation.interleaved),
        *(*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], pages.stride(0), offsets.stride(0)),
        *(*keys.stride()[:3], *values.stride()[:3]),
        0.0 if norms is None else norms.eps,
    )
    return q
