"""The backend over the paged attention op, whose torch reference runs everywhere; others derive from it.

Shapes are those of `PageWrite` and `PagedAttention`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.nn.attention.select import AttentionNeeds
from octavo.nn.heads import Heads
from octavo.ops.paged_attention import Scoring, Span
from octavo.ops.registry import Kernels
from octavo.ops.rope_write import HeadNorms, Rotation
from octavo.protocol.kept import Plane


class PagedBackend:
    """Keys and values in two planes, `key` and `value`, in the model's dtype."""

    def __init__(self, needs: AttentionNeeds, kernels: Kernels) -> None:
        self._dtype = needs.dtype
        self._page_write = kernels.page_write
        self._rope_write = kernels.rope_write
        self._paged_attention = kernels.paged_attention

    def planes(self, heads: Heads) -> tuple[Plane, ...]:
        """Return what it keeps of each token. heads: those of this rank."""
        itemsize = getattr(torch, self._dtype).itemsize
        return tuple(
            Plane(name=name, heads=heads.kv, dim=heads.dim, dtype=self._dtype, itemsize=itemsize)
            for name in ("key", "value")
        )

    def write(self, key: Tensor, value: Tensor, planes: Mapping[str, Tensor], pages: Tensor, offsets: Tensor) -> None:
        """Put the step's keys and values [T, K, D] into their pages."""
        self._page_write(key, value, planes["key"], planes["value"], pages, offsets)

    def rotate_and_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norms: HeadNorms | None,
        rotation: Rotation,
        planes: Mapping[str, Tensor],
        pages: Tensor,
        offsets: Tensor,
    ) -> Tensor:
        """Normalize and rotate q [T, H, D] and k [T, K, D], put k and v into their pages, return q. q, k are overwritten."""
        return self._rope_write(q, k, v, norms, rotation, (planes["key"], planes["value"]), pages, offsets)

    def attend(
        self,
        q: Tensor,
        planes: Mapping[str, Tensor],
        table: Tensor,
        query_starts: Tensor,
        lengths: Tensor,
        scoring: Scoring,
        span: Span | None = None,
    ) -> Tensor:
        """Return [T, H, D] for q [T, H, D]; the step's own keys and values are in the pages already."""
        return self._paged_attention(q, planes["key"], planes["value"], table, query_starts, lengths, scoring, span)
