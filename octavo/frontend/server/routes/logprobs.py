"""Log-probabilities in OpenAI's two shapes. JSON has no infinity: impossible tokens are reported as FLOOR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.protocol.output import Logprob

FLOOR = -9999.0
# The bytes of a token id; the second argument is its text, for tokenizers that know no better.
TokenBytes = Callable[[int, str], bytes]


def chat_entries(
    tokens: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]], num_top: int, token_bytes: TokenBytes
) -> list[dict[str, Any]]:
    """Return `choices[].logprobs.content` for some tokens: each with its bytes and its `num_top` likeliest rivals."""
    entries: list[dict[str, Any]] = []
    for token, alternatives in zip(tokens, logprobs, strict=True):
        entry = _chat_entry(token, alternatives[token], token_bytes)
        entry["top_logprobs"] = [_chat_entry(i, one, token_bytes) for i, one in _top(alternatives, num_top)]
        entries.append(entry)
    return entries


def _chat_entry(token: int, logprob: Logprob, token_bytes: TokenBytes) -> dict[str, Any]:
    text = logprob.decoded_token or ""
    return {"token": text, "logprob": finite(logprob.logprob), "bytes": list(token_bytes(token, text))}


class CompletionLogprobs:
    """`choices[].logprobs` of a completion, piece by piece: text_offset goes on where the last piece ended."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._offset = 0

    def piece(self, tokens: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]]) -> dict[str, list[Any]]:
        """Return the object for the next tokens; top_logprobs holds the likeliest ones, and the chosen one in any case."""
        piece: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, alternatives in zip(tokens, logprobs, strict=True):
            chosen = alternatives[token]
            text = chosen.decoded_token or ""
            top: dict[str, float] = {}
            for _, one in _top(alternatives, self._num_top):
                top.setdefault(one.decoded_token or "", finite(one.logprob))
            top.setdefault(text, finite(chosen.logprob))
            piece["tokens"].append(text)
            piece["token_logprobs"].append(finite(chosen.logprob))
            piece["top_logprobs"].append(top)
            piece["text_offset"].append(self._offset)
            self._offset += len(text)
        return piece


def finite(logprob: float) -> float:
    """Return the log-probability, or FLOOR for anything that JSON cannot carry."""
    return logprob if logprob > FLOOR else FLOOR


def _top(alternatives: Mapping[int, Logprob], count: int) -> list[tuple[int, Logprob]]:
    falling = sorted(alternatives.items(), key=lambda item: -finite(item[1].logprob))
    return falling[:count]
