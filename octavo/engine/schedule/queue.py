"""The waiting sequences, first in order first. A preempted one keeps its place ahead of later arrivals."""

from __future__ import annotations

import heapq

from octavo.engine.schedule.sequence import Sequence


class WaitingQueue:
    """A heap by `Sequence.order`; ended sequences are dropped when they come up. num_tokens: of those that have not ended."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._heap: list[tuple[tuple[int, int, int], Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        """Add a sequence."""
        sequence.queued = not sequence.ended
        self.num_tokens += len(sequence.tokens) if sequence.queued else 0
        heapq.heappush(self._heap, (sequence.order, sequence))

    def first(self) -> Sequence | None:
        """Return the sequence whose turn it is, without taking it."""
        while self._heap and self._heap[0][1].ended:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        """Take the sequence whose turn it is."""
        sequence = heapq.heappop(self._heap)[1]
        self.left(sequence)
        return sequence

    def left(self, sequence: Sequence) -> None:
        """Count a sequence no more: it was taken, or has ended."""
        self.num_tokens -= len(sequence.tokens) if sequence.queued else 0
        sequence.queued = False
