"""How a request's hidden states become one vector."""

from __future__ import annotations

from typing import Literal

import msgspec

Pooling = Literal["cls", "mean", "last"]


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a request for a vector asks for. pooling: the first token's state, the mean of all, or the last token's.

    normalize: scale the vector to length 1.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
