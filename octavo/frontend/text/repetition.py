"""Texts that go round in circles: the same few tokens again and again at the end of an output."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.protocol.sampling import RepetitionDetectionParams


class Repetition:
    """Watches one choice's tokens for a pattern that comes often enough in a row."""

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
