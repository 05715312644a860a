"""Token ids to text while they arrive: what is given out never changes, and no character is cut in two.

However the ids are split over calls, the pieces joined are the text of all ids at once. Work is O(1) per token: the text
so far is never decoded again.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Final

from octavo.frontend.text.tokenizer import Tokenizer, is_byte_token

# Tokens that may wait, at most, for a character to become whole, and tokens that a window may need to have any text.
_LONGEST_WAIT: Final = 8
_LONGEST_WINDOW: Final = 32
_REPLACEMENT: Final = "\ufffd"


def start_detokenizer(
    tokenizer: Tokenizer, *, skip_special_tokens: bool = True, shown: Collection[int] = ()
) -> ByteDetokenizer | WindowDetokenizer:
    """Return a fresh detokenizer of the kind that the tokenizer needs. shown: special tokens that are not skipped."""
    kind = ByteDetokenizer if tokenizer.byte_level else WindowDetokenizer
    return kind(tokenizer, skip_special_tokens=skip_special_tokens, shown=shown)


class ByteDetokenizer:
    """For byte-level BPE: tokens are bytes, read by a UTF-8 decoder that keeps the beginning of a character."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, shown: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole = True

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; return the text that is certain now."""
        tokenizer = self._tokenizer
        # Most come alone, behind whole characters, and are whole characters themselves.
        alone = len(ids) == 1 and self._whole
        if alone and (known := tokenizer.whole_texts.get(ids[0])) is not None:
            return known
        if self._skip:
            ids = [index for index in ids if index in self._shown or not tokenizer.is_special(index)]
        text = self._utf8.decode(b"".join(map(tokenizer.token_bytes, ids)))
        self._whole = not self._utf8.getstate()[0]
        if alone and self._whole and text and not tokenizer.is_special(ids[0]):
            tokenizer.whole_texts[ids[0]] = text
        return text

    def flush(self) -> str:
        """Return what was held back: the end of the text has come. An incomplete character gives U+FFFD."""
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For all other decoders: the new ids are decoded behind the last ones, and the text of those is cut off.

    The last ids are needed because a decoder treats the beginning of a text in its own way (SentencePiece drops a space),
    so a window always has some text. A run of byte tokens waits for its end: whether its bytes are read as UTF-8 or each
    replaced is decided by the whole run.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, shown: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._shown = shown
        self._window: list[int] = []
        self._window_text = ""
        self._new: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; return the text that is certain now."""
        return "".join([self._push_one(index) for index in ids])

    def flush(self) -> str:
        """Return what was held back: the end of the text has come."""
        return self._give_out(self._decode(self._window + self._new))

    def _push_one(self, index: int) -> str:
        tokenizer = self._tokenizer
        token = tokenizer.token_text(index)
        if token is None or (self._skip and index not in self._shown and tokenizer.is_special(index)):
            return ""
        self._new.append(index)
        if tokenizer.byte_fallback and is_byte_token(token):
            return ""
        text = self._decode(self._window + self._new)
        if text.endswith(_REPLACEMENT) and not tokenizer.byte_fallback and len(self._new) < _LONGEST_WAIT:
            return ""
        return self._give_out(text)

    def _give_out(self, text: str) -> str:
        certain = text[len(self._window_text) :]
        window_text = self._decode(self._new)
        if window_text:
            self._window, self._window_text = self._new, window_text
        else:
            self._window = (self._window + self._new)[-_LONGEST_WINDOW:]
            self._window_text = self._decode(self._window)
        self._new = []
        return certain

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
