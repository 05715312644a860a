"""What ends a text before the model does: stop strings over its stream, and patterns of tokens that come again and again.

A text ends at the stop string that is complete first; of several complete at the same character, at the longest. So the
answer does not depend on how the text was cut into pieces. Text that may still become a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.protocol.sampling import RepetitionDetectionParams


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatch:
    """A stop string that was found. num_tokens: output tokens up to and with the one that completed it."""

    stop: str
    num_tokens: int


class _Prefix:
    """How much of one stop string the end of the text spells (Knuth, Morris and Pratt 1977).

    The table of borders grows only as far as the text has ever spelled the string, so a long stop string costs nothing.
    """

    def __init__(self, stop: str) -> None:
        assert stop, "a stop string is not empty"
        self.stop = stop
        self.length = 0
        self._borders = [0, 0]

    def step(self, character: str) -> bool:
        """Take one character; returns whether the stop string is now complete."""
        stop, length = self.stop, self.pending()
        while length and stop[length] != character:
            length = self._border(length)
        self.length = length + 1 if stop[length] == character else 0
        return self.length == len(stop)

    def pending(self) -> int:
        """Return how many characters at the end of the text may begin the stop string: never all of it."""
        return self.length if self.length < len(self.stop) else self._border(self.length)

    def _border(self, length: int) -> int:
        """Return the longest proper prefix of stop[:length] that also ends it."""
        stop, borders = self.stop, self._borders
        while len(borders) <= length:
            last = len(borders) - 1
            border = borders[last]
            while border and stop[border] != stop[last]:
                border = borders[border]
            borders.append(border + 1 if stop[border] == stop[last] else 0)
        return borders[length]


class StopStrings:
    """Watches one choice's text. `match` is None until a stop string is complete; after that no text is given out.

    include: whether the text ends behind the stop string, or before it. min_tokens: a stop string completed by an earlier
    token than this is ordinary text.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False, min_tokens: int = 0) -> None:
        self._prefixes = [_Prefix(stop) for stop in sorted(set(stops), key=lambda stop: (-len(stop), stop))]
        self._first = {stop[0] for stop in stops}
        self._include = include
        self._min_tokens = min_tokens
        self._held = ""
        self.num_tokens = 0
        self.match: StopMatch | None = None

    def push(self, pieces: Sequence[str]) -> str:
        """Take the text of the next tokens, one piece a token (empty ones too); return the text that is certain now."""
        certain: list[str] = []
        for piece in pieces:
            if self.match is not None:
                break
            self.num_tokens += 1
            certain.append(self._take(piece))
        return "".join(certain)

    def flush(self, piece: str = "") -> str:
        """Return what was held back, and what the detokenizer held back (`piece`): the text has ended.

        `piece` may still complete a stop string; the last token counts as the one that did.
        """
        if self.match is not None:
            return ""
        certain = self._take(piece)
        if self.match is None:
            certain, self._held = certain + self._held, ""
        return certain

    def _take(self, piece: str) -> str:
        if not self._held and self._first.isdisjoint(piece):
            return piece
        text = self._held + piece
        for position, character in enumerate(piece, len(self._held) + 1):
            complete: str | None = None
            for prefix in self._prefixes:
                if prefix.step(character) and complete is None:
                    complete = prefix.stop
            if complete is not None and self.num_tokens >= self._min_tokens:
                self.match = StopMatch(stop=complete, num_tokens=self.num_tokens)
                self._held = ""
                return text[:position] if self._include else text[: position - len(complete)]
        # A whole stop string that did not count is not held back, only what it may begin.
        kept = max((prefix.pending() for prefix in self._prefixes), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


class Repetition:
    """Watches one choice's tokens for a pattern that comes often enough in a row: texts that go round in circles."""

    def __init__(self, asked: RepetitionDetectionParams) -> None:
        self._asked = asked
        self._longest = asked.max_pattern_size * asked.min_count
        self._tail: list[int] = []

    def push(self, ids: Sequence[int]) -> int | None:
        """Take the next ids; return how many of them there were when a pattern was complete, None if none is."""
        for count, token in enumerate(ids, 1):
            self._tail.append(token)
            if self._repeats():
                return count
            # Cut now and then, and not with every token.
            if len(self._tail) > 2 * self._longest:
                del self._tail[: -self._longest]
        return None

    def _repeats(self) -> bool:
        tail, asked = self._tail, self._asked
        for size in range(asked.min_pattern_size, asked.max_pattern_size + 1):
            span = size * asked.min_count
            # What repeats is equal to itself, moved by one pattern.
            if len(tail) >= span and tail[-1] == tail[-1 - size] and tail[-span:-size] == tail[size - span :]:
                return True
        return False
