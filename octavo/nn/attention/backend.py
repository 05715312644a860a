"""The protocol of an attention backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from octavo.nn.heads import Heads
from octavo.ops.paged_attention import Scoring, Span
from octavo.ops.rope_write import HeadNorms, Rotation
from octavo.protocol.kept import Plane


class AttentionBackend(Protocol):
    """Keeps keys and values in pages and attends to them. Shapes are those of `PageWrite` and `PagedAttention`."""

    def planes(self, heads: Heads) -> tuple[Plane, ...]:
        """Return what it keeps of each token. heads: those of this rank."""
        ...

    def write(self, key: Tensor, value: Tensor, planes: Mapping[str, Tensor], pages: Tensor, offsets: Tensor) -> None:
        """Put the step's keys and values [T, K, D] into their pages."""
        ...

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
        ...

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
        ...
