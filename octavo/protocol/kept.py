"""What a layer keeps between steps. Layers that keep the same thing form a group and share page tables."""

from __future__ import annotations

import msgspec


class Plane(msgspec.Struct, frozen=True, kw_only=True):
    """One named array that a layer keeps: `[heads, tokens, dim]` of `dtype` inside a page, or `[heads, dim]` of a state."""

    name: str
    heads: int
    dim: int
    dtype: str
    itemsize: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token (or one state) takes in this plane."""
        return self.heads * self.dim * self.itemsize


class KeptTokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Something per token (keys and values, a latent). window: tokens visible, None for all.

    encoder: of the tokens of the encoder's input, all written when the sequence is admitted, instead of the text's.
    """

    planes: tuple[Plane, ...]
    window: int | None = None
    encoder: bool = False

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all planes of one layer."""
        return sum(plane.bytes_per_token for plane in self.planes)


class KeptState(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """Something per sequence, whatever its length, that every token changes (a recurrent state, a convolution's inputs).

    A large one spans several pages, each with the same share of every plane's heads. Planes of wide elements come first.
    """

    planes: tuple[Plane, ...]

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes that one sequence takes in all planes of one layer."""
        return sum(plane.bytes_per_token for plane in self.planes)


Kept = KeptTokens | KeptState


class KeptLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's index in the model and what it keeps. blocks: tokens per block that its attention backend takes.

    shares: the layer whose pages it reads instead of keeping anything of its own; `kept` is then what it finds there.
    """

    layer: int
    kept: Kept
    blocks: tuple[int, ...] = ()
    shares: int | None = None
