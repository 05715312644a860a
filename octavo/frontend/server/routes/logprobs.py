"""Log-probabilities in OpenAI's two shapes. JSON has no infinity: impossible tokens are reported as FLOOR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.protocol.output import Logprob

FLOOR = -9999.0
# The bytes of a token id; the second argument is its text, for tokenizers that know no better.
TokenBytes = Callable[[int, str], bytes]


def chat_entries(
    tokens: Sequence[int],
    logprobs: Sequence[Mapping[int, Logprob]],
    num_top: int,
    token_bytes: TokenBytes,
    *,
    as_ids: bool = False,
) -> list[dict[str, Any]]:
    """Return `choices[].logprobs.content` for some tokens: each with its bytes and its `num_top` likeliest rivals.

    as_ids: tokens are told by their ids.
    """
    entries: list[dict[str, Any]] = []
    for token, alternatives in zip(tokens, logprobs, strict=True):
        entry = _chat_entry(token, alternatives[token], token_bytes, as_ids)
        entry["top_logprobs"] = [_chat_entry(i, one, token_bytes, as_ids) for i, one in _top(alternatives, num_top)]
        entries.append(entry)
    return entries


def _chat_entry(token: int, logprob: Logprob, token_bytes: TokenBytes, as_ids: bool) -> dict[str, Any]:
    text = logprob.decoded_token or ""
    return {
        "token": _name(token, text, as_ids),
        "logprob": finite(logprob.logprob),
        "bytes": list(token_bytes(token, text)),
    }


def _name(token: int, text: str, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else text


class CompletionLogprobs:
    """`choices[].logprobs` of a completion, piece by piece: text_offset goes on where the last piece ended.

    as_ids: tokens are told by their ids.
    """

    def __init__(self, num_top: int, token_bytes: TokenBytes, *, as_ids: bool = False) -> None:
        self._as_ids = as_ids
        self._num_top = num_top
        self._token_bytes = token_bytes
        self._offset = 0

    def piece(self, tokens: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]]) -> dict[str, list[Any]]:
        """Return the object for the next tokens; top_logprobs holds the likeliest ones, and the chosen one in any case.

        The first token of an echoed prompt has none, and null in their places.
        """
        piece: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, alternatives in zip(tokens, logprobs, strict=True):
            chosen = alternatives.get(token)
            if chosen is None:
                text = self._token_bytes(token, "").decode("utf-8", "replace")
                self._add(piece, text, _name(token, text, self._as_ids), None, None)
                continue
            text = chosen.decoded_token or ""
            top: dict[str, float] = {}
            for other, one in _top(alternatives, self._num_top):
                top.setdefault(_name(other, one.decoded_token or "", self._as_ids), finite(one.logprob))
            name = _name(token, text, self._as_ids)
            top.setdefault(name, finite(chosen.logprob))
            self._add(piece, text, name, finite(chosen.logprob), top)
        return piece

    def _add(self, piece: dict[str, list[Any]], text: str, *entry: Any) -> None:
        for column, value in zip(piece.values(), (*entry, self._offset), strict=True):
            column.append(value)
        self._offset += len(text)


def prompt_entries(logprobs: Sequence[Mapping[int, Logprob] | None] | None) -> list[dict[str, Any] | None] | None:
    """Return `prompt_logprobs`: for each token of the prompt, id -> its log-probability, rank and text; null for the first."""
    if logprobs is None:
        return None
    return [
        None
        if one is None
        else {
            str(token): {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}
            for token, entry in one.items()
        }
        for one in logprobs
    ]


def finite(logprob: float) -> float:
    """Return the log-probability, or FLOOR for anything that JSON cannot carry."""
    return logprob if logprob > FLOOR else FLOOR


def _top(alternatives: Mapping[int, Logprob], count: int) -> list[tuple[int, Logprob]]:
    falling = sorted(alternatives.items(), key=lambda item: -finite(item[1].logprob))
    return falling[:count]
