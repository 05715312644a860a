"""The waiting sequences, first in order first. A preempted one keeps its place ahead of later arrivals."""

from __future__ import annotations

import heapq

from octavo.engine.schedule.sequence import Sequence


class WaitingQueue:
    """A heap by `Sequence.order`; ended sequences are dropped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        """Add a sequence."""
        heapq.heappush(self._heap, (sequence.order, sequence))

    def first(self) -> Sequence | None:
        """Return the sequence whose turn it is, without taking it."""
        while self._heap and self._heap[0][1].ended:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        """Take the sequence whose turn it is."""
        return heapq.heappop(self._heap)[1]
