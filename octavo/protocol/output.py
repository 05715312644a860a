"""What comes back: `TokenDelta` between processes, `RequestOutput` to users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from octavo.protocol.arrays import Float32Array, Int32Array, Int64Array, int32, int64
from octavo.protocol.control import Ack
from octavo.protocol.step import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """A choice ended: output tokens from index `num_tokens` on do not count, whoever says so and however late.

    stop_id: the token id that ended it (it is the last counted token), if one did.
    """

    key: int
    choice: int
    num_tokens: int
    reason: FinishReason
    stop_id: int | None = None
    message: str = ""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A choice got its slot for the first time. num_cached: prompt tokens found in the cache. time: seconds since epoch."""

    key: int
    choice: int
    num_cached: int
    time: float


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and running totals of an engine, sent with every delta. Pages count units of the pool.

    waits_since: when the sequence arrived whose turn it is, in seconds since the epoch; 0 if none waits.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    waits_since: float = 0.0
    num_slots: int = 0
    used_slots: int = 0
    num_pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    used_pages: int = 0
    pending_pages: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    num_steps: int = 0
    failed_rows: int = 0


class PromptScores(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of prompts' tokens. r rows, t tokens.

    keys: int64 [r]. firsts: int32 [r], the place in the prompt of a row's first token. offsets: int32 [r + 1].
    """

    keys: Int64Array
    firsts: Int32Array
    offsets: Int32Array
    logprobs: TokenLogprobs


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """All that one committed step tells one frontend, in flat arrays. r rows, t tokens.

    keys: int64 [r], choices: int32 [r]. firsts: int32 [r], output index of the row's first token. offsets: int32 [r + 1]
    into ids. ids: int32 [t]. logprobs: as in StepResult, in the order of ids. vectors: float32 [v, d], the answers to the
    requests vector_keys, int64 [v].
    """

    keys: Int64Array = msgspec.field(default_factory=int64)
    choices: Int32Array = msgspec.field(default_factory=int32)
    firsts: Int32Array = msgspec.field(default_factory=int32)
    offsets: Int32Array = msgspec.field(default_factory=lambda: int32([0]))
    ids: Int32Array = msgspec.field(default_factory=int32)
    logprobs: TokenLogprobs | None = None
    vector_keys: Int64Array = msgspec.field(default_factory=int64)
    vectors: Float32Array | None = None
    scores: PromptScores | None = None
    starts: tuple[Start, ...] = ()
    finishes: tuple[Finish, ...] = ()
    acks: tuple[Ack, ...] = ()
    stats: EngineStats | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine's first message: it is loaded. max_model_len: tokens of prompt and output together."""

    max_model_len: int
    num_pages: int
    page_bytes: int
    decisions: tuple[str, ...] = ()


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """The engine's last message: it cannot go on. `kind` names the error class."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """Log-probability of one token at one position; rank 1 is the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One choice of a request, so far. text and token_ids are cumulative or a delta, as the request's stream was asked for.

    logprobs: per token, id -> Logprob, the chosen token first. finish_reason: None while running.
    stop_reason: the stop string or token id that ended it; None for the model's own end of sequence or the length.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """Times in seconds since the epoch; None for what has not happened."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


class RequestOutput(msgspec.Struct, kw_only=True):
    """A request's answer, so far or final. num_cached_tokens: prompt tokens that were not computed again.

    prompt_logprobs: of the prompt's tokens that are computed, id -> Logprob, the token itself first; None for the first.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput] = []
    finished: bool = False
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None


EngineMessage = TokenDelta | Ready | Failure
