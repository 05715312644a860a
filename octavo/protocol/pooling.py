"""How a request's hidden states become one vector."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from octavo.base.errors import InvalidRequestError

Pooling = Literal["cls", "mean", "last"]


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a request for a vector asks for. pooling: the first token's state, the mean of all, or the last token's.

    normalize: scale the vector to length 1; use_activation is vLLM's name for it, and counts where it is given.
    dimensions: keep only the first so many numbers. Values that are none of these raise InvalidRequestError.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    use_activation: bool | None = None
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            allowed = ", ".join(get_args(Pooling))
            raise InvalidRequestError(f"pooling must be one of {allowed}, not {self.pooling!r}", field="pooling")
        switch: Any = self.normalize if self.use_activation is None else self.use_activation
        if not isinstance(switch, bool):
            raise InvalidRequestError(f"normalize must be true or false, not {switch!r}", field="normalize")
        msgspec.structs.force_setattr(self, "normalize", switch)
        count: Any = self.dimensions
        if count is not None and not (isinstance(count, int) and not isinstance(count, bool) and count > 0):
            raise InvalidRequestError(
                f"dimensions must be a whole number of at least 1, not {count!r}", field="dimensions"
            )
