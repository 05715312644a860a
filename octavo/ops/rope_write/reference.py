"""Normalize, rotate and write, one after the other."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.page_write.reference import page_write
from octavo.ops.rms_norm.reference import rms_norm
from octavo.ops.rope.reference import rope
from octavo.ops.rope_write import HeadNorms, Rotation


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
