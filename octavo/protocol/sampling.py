"""How to choose tokens: `SamplingParams`, with the names and defaults that scripts written for vLLM use."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from octavo.base.errors import InvalidRequestError
from octavo.base.naming import checked_names
from octavo.base.unicode import check_unicode
from octavo.protocol.arrays import plain

MAX_CHOICES = 16384
MAX_STOP_STRINGS = 64
MAX_STOP_TOKEN_IDS = 512
# Temperatures below this are greedy: dividing by them would overflow float32 logits.
GREEDY_BELOW = 1e-5
_INT63 = 2**63 - 1


@checked_names("sampling parameter")
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request's generation; out-of-range values raise InvalidRequestError naming the field.

    n: choices per prompt. temperature: 0 is greedy. top_p in (0, 1]. top_k: 0 or -1 is off. min_p in [0, 1].
    seed: None draws one. max_tokens: None goes to the end of the context. stop: strings that end the text.
    stop_token_ids: ids that end it besides the model's own. ignore_eos: the model's own ids do not end it.
    logprobs: alternatives reported per token (0: the chosen one only; None: off; -1: all).
    detokenize: False leaves `text` empty.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        _normalize(self)
        _whole("n", self.n, 1, MAX_CHOICES)
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _whole("top_k", self.top_k, -1, 2**31 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _whole("seed", self.seed, -_INT63, _INT63)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", field="min_tokens"
            )
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, -1, 2**31 - 1)
        _check_stops(self)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name} must be true or false, not {getattr(self, name)!r}", field=name)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True; use stop_token_ids instead", field="stop")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def _normalize(params: SamplingParams) -> None:
    """Turn the spellings users know (a lone stop string, lists, numpy's numbers) into ours."""
    for declared in fields(params):
        given = getattr(params, declared.name)
        if (own := plain(given)) is not given:
            object.__setattr__(params, declared.name, own)
    stop: Any = params.stop
    if stop is None or isinstance(stop, str):
        object.__setattr__(params, "stop", (stop,) if stop is not None else ())
    elif isinstance(stop, list):
        object.__setattr__(params, "stop", tuple(stop))
    ids: Any = params.stop_token_ids
    if ids is None or isinstance(ids, list):
        object.__setattr__(params, "stop_token_ids", tuple(ids or ()))


def _check_stops(params: SamplingParams) -> None:
    stops: Any = params.stop
    if not isinstance(stops, tuple) or not all(isinstance(s, str) and s for s in stops):
        raise InvalidRequestError("stop must be a non-empty string or a list of them", field="stop")
    for text in stops:
        check_unicode(text, "stop")
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, not {len(stops)}", field="stop")
    ids: Any = params.stop_token_ids
    if not isinstance(ids, tuple) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise InvalidRequestError("stop_token_ids must be a list of token ids >= 0", field="stop_token_ids")
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(
            f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids, not {len(ids)}", field="stop_token_ids"
        )


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be a whole number, not {value!r}", field=name)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be between {low} and {high}, not {value}", field=name)


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be a number, not {value!r}", field=name)
    # Written so that NaN is in no range, and no whole number too large for a float.
    if not (low < value <= high if open_low else low <= value <= high):
        span = f"in ({low:g}, {high:g}]" if open_low else f"between {low:g} and {high:g}"
        raise InvalidRequestError(f"{name} must be {span}, not {value}", field=name)
