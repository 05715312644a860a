"""How to choose tokens: `SamplingParams`, with the names and defaults that scripts written for vLLM use."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from octavo.base.errors import InvalidRequestError
from octavo.base.naming import checked_names
from octavo.base.unicode import check_unicode
from octavo.protocol.arrays import plain
from octavo.protocol.structured import StructuredOutputsParams

MAX_CHOICES = 16384
# Entries of each list of a request: what is checked and kept per sequence stays small.
MAX_LISTED = {"stop": 64, "stop_token_ids": 512, "bad_words": 256, "logit_bias": 4096, "logits_processors": 16}
# What vLLM's parameters have and these have not, and why; a value other than None is an UnsupportedError.
REFUSED = {
    "prompt_logprob_token_ids": "not supported yet; prompt_logprobs=-1 reports every token",
    "prompt_logprob_start": "not supported yet; prompt_logprobs reports the whole prompt",
    "routed_experts_prompt_start": "which experts a token went to is not reported",
    "watermarking": "texts are not watermarked",
}
# Temperatures below this are greedy: dividing by them would overflow float32 logits.
GREEDY_BELOW = 1e-5
_INT63 = 2**63 - 1
_INT31 = 2**31 - 1


class RequestOutputKind(enum.StrEnum):
    """What a streamed output holds: all so far, what is new, or there is one output, the whole answer."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """What a number may be: from `low`, or above it where `open_low`, to `high`."""

    low: float
    high: float
    whole: bool = False
    open_low: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise InvalidRequestError naming the field if the value is no number of this range."""
        if not isinstance(value, int if self.whole else (int, float)) or isinstance(value, bool):
            raise InvalidRequestError(
                f"{name} must be a {'whole ' if self.whole else ''}number, not {value!r}", field=name
            )
        # Written so that NaN is in no range, and no whole number too large for a float.
        if not (self.low < value <= self.high if self.open_low else self.low <= value <= self.high):
            low, high = (f"{end}" if self.whole else f"{end:g}" for end in (self.low, self.high))
            span = f"in ({low}, {high}]" if self.open_low else f"between {low} and {high}"
            raise InvalidRequestError(f"{name} must be {span}, not {value}", field=name)


def _whole(default: int | None, low: int, high: int = _INT31) -> Any:
    return field(default=default, metadata={"range": NumberRange(low=low, high=high, whole=True)})


def _real(default: float, low: float, high: float, *, open_low: bool = False) -> Any:
    return field(default=default, metadata={"range": NumberRange(low=low, high=high, open_low=open_low)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetectionParams:
    """Patterns of min_pattern_size (0: one) to max_pattern_size tokens that come min_count times in a row."""

    max_pattern_size: int = _whole(0, 1, 1024)
    min_pattern_size: int = _whole(0, 0, 1024)
    min_count: int = _whole(0, 2, 1024)

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_pattern_size", self.min_pattern_size or 1)
        for declared in fields(self):
            declared.metadata["range"].check(f"repetition_detection.{declared.name}", getattr(self, declared.name))
        if self.min_pattern_size > self.max_pattern_size:
            name = "repetition_detection.min_pattern_size"
            raise InvalidRequestError(f"{name} must not exceed max_pattern_size, {self.max_pattern_size}", field=name)


@checked_names("sampling parameter", REFUSED)
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request's generation; out-of-range values raise InvalidRequestError naming the field.

    n: choices per prompt. temperature: 0 is greedy. top_p in (0, 1]. top_k: 0 or -1 is off. min_p in [0, 1].
    presence_penalty, frequency_penalty: taken from the logits of tokens of the output, once, and for each time.
    repetition_penalty: divides what favours tokens of prompt and output. logit_bias: id -> number added to its logit.
    allowed_token_ids: no other is chosen. bad_words: texts that do not come into being.
    seed: None or -1 draws one. max_tokens: None goes to the end of the context. stop: strings that end the text.
    repetition_detection: a pattern of tokens that comes so often in a row ends it, with finish_reason "repetition".
    stop_token_ids: ids that end it besides the model's own. ignore_eos: the model's own ids do not end it.
    logprob_token_ids: whose log-probabilities are reported in place of the likeliest ones.
    logprobs: alternatives reported per token (0: the chosen one only; None: off; -1: all). prompt_logprobs: the same of
    the prompt's tokens, which is then computed whole. detokenize: False leaves `text` empty. output_kind: of `AsyncLLM`.
    stream_interval: tokens that a streamed output waits for, after the first. truncate_prompt_tokens: only the last so many
    tokens of the prompt count; -1: as many as fit beside the output. skip_reading_prefix_cache: compute the whole prompt.
    logits_processors: functions (output ids, logits) or (prompt ids, output ids, logits) -> logits, one row; `LLM` only.
    trace_decode_token_ids: the output begins with these, whatever is likely; log-probabilities are the model's.
    extra_args: what logits processors of the engine are told. structured_outputs: the form that the answer must have.
    thinking_token_budget: tokens of thought at most, in chats of a model that thinks.
    """

    n: int = _whole(1, 1, MAX_CHOICES)
    temperature: float = _real(1.0, 0.0, 100.0)
    top_p: float = _real(1.0, 0.0, 1.0, open_low=True)
    top_k: int = _whole(0, -1)
    min_p: float = _real(0.0, 0.0, 1.0)
    presence_penalty: float = _real(0.0, -2.0, 2.0)
    frequency_penalty: float = _real(0.0, -2.0, 2.0)
    repetition_penalty: float = _real(1.0, 0.01, 100.0)
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    seed: int | None = _whole(None, -_INT63, _INT63)
    max_tokens: int | None = _whole(16, 1)
    min_tokens: int = _whole(0, 0)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_detection: RepetitionDetectionParams | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = _whole(None, -1)
    prompt_logprobs: int | None = _whole(None, -1)
    logprob_token_ids: tuple[int, ...] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = _whole(None, 1)
    truncate_prompt_tokens: int | None = _whole(None, -1)
    skip_reading_prefix_cache: bool = False
    trace_decode_token_ids: tuple[int, ...] | None = None
    logits_processors: tuple[Any, ...] = ()
    extra_args: Mapping[str, Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = _whole(None, 0)

    def __post_init__(self) -> None:
        _normalize(self)
        for name, span in _RANGES:
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                span.check(name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", field="min_tokens"
            )
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name} must be true or false, not {getattr(self, name)!r}", field=name)
        _check_texts(self)
        _check_ids(self)
        _check_bias(self)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True; use stop_token_ids instead", field="stop")
        if not isinstance(self.logits_processors, tuple) or not all(map(callable, self.logits_processors)):
            raise InvalidRequestError("logits_processors must be a list of functions", field="logits_processors")
        _check_number_of("logits_processors", self.logits_processors, "functions")
        if self.extra_args is not None and not isinstance(self.extra_args, Mapping):
            raise InvalidRequestError("extra_args must be a dictionary", field="extra_args")
        if self.truncate_prompt_tokens == 0:
            name = "truncate_prompt_tokens"
            raise InvalidRequestError(f"{name} must be at least 1, or -1", field=name)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def penalized(self) -> bool:
        """Whether tokens that have come before count."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


_RANGES: tuple[tuple[str, NumberRange], ...] = tuple(
    (declared.name, declared.metadata["range"]) for declared in fields(SamplingParams) if declared.metadata
)
_OPTIONAL = ("max_tokens", *(one.name for one in fields(SamplingParams) if one.metadata and one.default is None))
_SWITCHES = tuple(one.name for one in fields(SamplingParams) if isinstance(one.default, bool))
_OPTIONAL_IDS = ("allowed_token_ids", "logprob_token_ids", "trace_decode_token_ids")
_RECORDS: Mapping[str, Any] = {
    "repetition_detection": RepetitionDetectionParams,
    "structured_outputs": StructuredOutputsParams,
}
_TUPLES = ("stop", "stop_token_ids", "bad_words", "logits_processors", *_OPTIONAL_IDS)


def _normalize(params: SamplingParams) -> None:
    """Turn the spellings users know (a lone stop string, lists, numpy's numbers, numbers as JSON's keys) into ours."""
    for declared in fields(params):
        given = getattr(params, declared.name)
        if (own := plain(given)) is not given:
            object.__setattr__(params, declared.name, own)
    for name in _TUPLES:
        value: Any = getattr(params, name)
        if isinstance(value, str):
            object.__setattr__(params, name, (value,))
        elif isinstance(value, list):
            object.__setattr__(params, name, tuple(value))
        elif value is None and name not in _OPTIONAL_IDS:
            object.__setattr__(params, name, ())
    if params.seed == -1:
        object.__setattr__(params, "seed", None)
    try:
        object.__setattr__(params, "output_kind", RequestOutputKind(params.output_kind))
    except ValueError as error:
        allowed = ", ".join(RequestOutputKind)
        raise InvalidRequestError(
            f"output_kind must be one of {allowed}, not {params.output_kind!r}", field="output_kind"
        ) from error
    _make_records(params)
    if params.logprob_token_ids and params.logprobs is None:
        object.__setattr__(params, "logprobs", 0)


def _make_records(params: SamplingParams) -> None:
    for name, record in _RECORDS.items():
        given = getattr(params, name)
        if given is not None and not isinstance(given, record):
            try:
                object.__setattr__(params, name, record(**given))
            except TypeError as error:
                raise InvalidRequestError(f"{name}: {error}", field=name) from error


def _check_texts(params: SamplingParams) -> None:
    for name in ("stop", "bad_words"):
        texts: Any = getattr(params, name)
        if not isinstance(texts, tuple) or not all(isinstance(text, str) and text for text in texts):
            raise InvalidRequestError(f"{name} must be a non-empty string or a list of them", field=name)
        for text in texts:
            check_unicode(text, name)
        _check_number_of(name, texts, "strings")


def _check_ids(params: SamplingParams) -> None:
    for name in ("stop_token_ids", *_OPTIONAL_IDS):
        ids: Any = getattr(params, name)
        if ids is None:
            continue
        if not isinstance(ids, tuple) or not all(map(_is_id, ids)):
            raise InvalidRequestError(f"{name} must be a list of token ids >= 0", field=name)
    _check_number_of("stop_token_ids", params.stop_token_ids, "ids")
    if len(params.logprob_token_ids or ()) > 128 or (params.logprob_token_ids and params.logprobs):
        raise InvalidRequestError(
            "logprob_token_ids takes at most 128 ids, and takes the place of logprobs", field="logprob_token_ids"
        )
    if params.allowed_token_ids == ():
        raise InvalidRequestError(
            "allowed_token_ids must name at least one id, or be left out", field="allowed_token_ids"
        )


def _check_bias(params: SamplingParams) -> None:
    bias: Any = params.logit_bias
    if bias is None:
        return
    if isinstance(bias, Mapping):
        # Keys of JSON are strings.
        bias = {int(key) if isinstance(key, str) and key.isdecimal() else key: value for key, value in bias.items()}
        object.__setattr__(params, "logit_bias", bias)
    if not isinstance(bias, dict) or not all(map(_is_id, bias)):
        raise InvalidRequestError("logit_bias must map token ids >= 0 to numbers", field="logit_bias")
    _check_number_of("logit_bias", bias, "ids")
    for value in bias.values():
        NumberRange(low=-100.0, high=100.0).check("logit_bias", value)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_number_of(name: str, listed: Any, what: str) -> None:
    if len(listed) > MAX_LISTED[name]:
        raise InvalidRequestError(f"{name} takes at most {MAX_LISTED[name]} {what}, not {len(listed)}", field=name)
