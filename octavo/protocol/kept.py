"""What a layer keeps between steps. Layers that keep the same thing form a group and share page tables."""

from __future__ import annotations

import msgspec


class Plane(msgspec.Struct, frozen=True, kw_only=True):
    """One named array that a layer keeps per token: `[heads, tokens, dim]` of `dtype` inside a page."""

    name: str
    heads: int
    dim: int
    dtype: str
    itemsize: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in this plane."""
        return self.heads * self.dim * self.itemsize


class KeptTokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Something per token (keys and values, a latent). window: tokens visible, None for all."""

    planes: tuple[Plane, ...]
    window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all planes of one layer."""
        return sum(plane.bytes_per_token for plane in self.planes)


class KeptLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's index in the model and what it keeps. blocks: tokens per block that its attention backend takes."""

    layer: int
    kept: KeptTokens
    blocks: tuple[int, ...]
