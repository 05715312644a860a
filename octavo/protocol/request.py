"""What a frontend sends to an engine."""

from __future__ import annotations

import msgspec

from octavo.protocol.arrays import Int32Array, Int64Array
from octavo.protocol.control import Control
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """A tokenized prompt to continue.

    key: unique for the life of the engine; the frontend's own number, never the user's id.
    tokens: int32 prompt ids, not empty, all inside the vocabulary.
    stop_ids: every id that ends generation (the model's and the user's), already resolved by the frontend.
    bad_tokens: the token sequences of the bad words, also resolved there; the last token of one never completes it.
    max_tokens: tokens to generate at most per choice, already clamped to the context.
    seed: of the counter-based random numbers; choice i and position p make the rest of the key.
    priority: lower runs first under the priority policy. arrival: seconds since the epoch.
    cache_salt: only requests with an equal salt share cached pages.
    encoder_tokens: int32, the input of the encoder, for models that have one; the prompt is then where the decoder begins.
    grammar: in llguidance's form of Lark, checked; every token must go on with it. Empty: any may come.
    pooling: the request is for a vector, not for tokens; then max_tokens is 0 and sampling has one choice.
    """

    key: int
    tokens: Int32Array
    sampling: SamplingParams
    stop_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    bad_tokens: tuple[tuple[int, ...], ...] = ()
    priority: int = 0
    arrival: float = 0.0
    cache_salt: str = ""
    encoder_tokens: Int32Array | None = None
    grammar: str = ""
    pooling: PoolingParams | None = None


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Drop all choices of these requests. keys: int64."""

    keys: Int64Array


class FinishChoice(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """The frontend ends one choice: output tokens from `num_tokens` on do not count (a stop string matched)."""

    key: int
    choice: int
    num_tokens: int


FrontMessage = Request | Abort | FinishChoice | Control
