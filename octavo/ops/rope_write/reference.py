"""Rotary embedding in plain torch; and normalize, rotate and write, one after the other."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.page_write.reference import page_write
from octavo.ops.rms_norm.reference import rms_norm
from octavo.ops.rope_write import HeadNorms, Rotation


def rope(q: Tensor, k: Tensor, positions: Tensor, table: Tensor, interleaved: bool = False) -> None:
    """See `Rope`."""
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    size = table.shape[-1]
    for x in (q, k):
        pairs = x[..., :size].unflatten(-1, (-1, 2) if interleaved else (2, -1))
        first, second = pairs.unbind(-1 if interleaved else -2)
        rotated = (first * cos).addcmul_(second, sin, value=-1)
        second.copy_((second * cos).addcmul_(first, sin))
        first.copy_(rotated)


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
    """See `RopeWrite`."""
    if norms is not None:
        q, k = rms_norm(q, norms.q, norms.eps), rms_norm(k, norms.k, norms.eps)
    rope(q, k, rotation.positions, rotation.table, rotation.interleaved)
    page_write(k, v, *planes, pages, offsets)
    return q
