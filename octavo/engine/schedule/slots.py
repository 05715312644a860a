"""Running sequences as flat arrays indexed by slot, so that a steady step costs no Python per sequence.

A slot is held from admission to finish, preemption or abort. Whoever leaves raises its generation, so that answers of plans
still in flight are recognized as stale; the slot is handed out again only when those plans are done.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.sequence import Sequence
from octavo.protocol.arrays import BoolArray, Int32Array

# Stop ids that fit beside a slot; a sequence with more is checked one by one.
STOP_WIDTH = 8


class SlotTable:
    """One row per slot.

    length: tokens known. computed: leading positions whose pages are filled. ahead: positions granted to plans in flight.
    in_flight: how many plans in flight hold the slot. capacity: tokens that its blocks can take. event: computed tokens at
    which the cache has something to do. pools: whether it asks for a vector. scores: whether for its prompt's
    log-probabilities. constrained: whether it has a grammar. limit, min_length: where it must, and where it may first, end.
    """

    def __init__(self, limits: ScheduleLimits) -> None:
        size = limits.max_num_seqs
        self.generation = np.zeros(size, np.int32)
        self.length = np.zeros(size, np.int32)
        self.computed = np.zeros(size, np.int32)
        self.ahead = np.zeros(size, np.int32)
        self.in_flight = np.zeros(size, np.int32)
        self.capacity = np.zeros(size, np.int32)
        self.event = np.zeros(size, np.int32)
        self.limit = np.zeros(size, np.int32)
        self.min_length = np.zeros(size, np.int32)
        self.num_prompt = np.zeros(size, np.int32)
        self.last_plan = np.zeros(size, np.int64)
        self.key = np.zeros(size, np.int64)
        self.choice = np.zeros(size, np.int32)
        self.loading = np.zeros(size, np.bool_)
        self.pools = np.zeros(size, np.bool_)
        self.scores = np.zeros(size, np.bool_)
        self.num_scores = 0
        self.constrained = np.zeros(size, np.bool_)
        self.num_constrained = 0
        self.stop_ids = np.full((size, STOP_WIDTH), -1, np.int32)
        self.many_stops: dict[int, frozenset[int]] = {}
        # Rows are touched, and so backed by memory, only as far as sequences have ever grown.
        self.tokens = np.empty((size, limits.max_model_len + limits.tokens_per_step), np.int32)
        self.sequences: list[Sequence | None] = [None] * size
        self.released: list[int] = []
        self._free = list(range(size - 1, -1, -1))
        self._pending: deque[tuple[int, int]] = deque()

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    @property
    def next_free(self) -> int:
        """The slot that `acquire` will give."""
        return self._free[-1]

    @property
    def num_pending(self) -> int:
        """Slots that wait for plans in flight."""
        return len(self._pending)

    def acquire(self, sequence: Sequence, num_computed: int) -> int:
        """Give a sequence a slot and write its row; the caller has checked `num_free`."""
        slot = self._free.pop()
        request, length = sequence.request, len(sequence.tokens)
        self.length[slot] = length
        self.computed[slot] = num_computed
        self.ahead[slot] = self.in_flight[slot] = self.capacity[slot] = self.event[slot] = 0
        self.limit[slot] = sequence.limit
        self.num_prompt[slot] = sequence.num_prompt
        self.min_length[slot] = sequence.num_prompt + request.sampling.min_tokens
        self.last_plan[slot] = -1
        self.key[slot] = request.key
        self.choice[slot] = sequence.choice
        self.loading[slot] = False
        self.pools[slot] = request.pooling is not None
        self.scores[slot] = sequence.scores
        self.num_scores += sequence.scores
        self.constrained[slot] = sequence.matcher is not None
        self.num_constrained += sequence.matcher is not None
        self.stop_ids[slot] = -1
        if len(request.stop_ids) <= STOP_WIDTH:
            self.stop_ids[slot, : len(request.stop_ids)] = request.stop_ids
        else:
            self.many_stops[slot] = frozenset(request.stop_ids)
        self.tokens[slot, :length] = sequence.tokens
        self.sequences[slot] = sequence
        sequence.slot = slot
        return slot

    def release(self, slot: int, plan: int) -> None:
        """Take a slot from its sequence; it is free again after `plan`."""
        sequence = self.sequences[slot]
        assert sequence is not None
        sequence.slot = -1
        self.sequences[slot] = None
        self.many_stops.pop(slot, None)
        self.num_scores -= int(self.scores[slot])
        self.num_constrained -= int(self.constrained[slot])
        self.generation[slot] += 1
        self.released.append(slot)
        self._pending.append((plan, slot))

    def scoring(self, slots: Int32Array, starts: Int32Array) -> Int32Array:
        """Return the rows that compute a prompt of which log-probabilities are asked."""
        return np.flatnonzero(self.scores[slots] & (starts >= 0)).astype(np.int32)

    def plan_done(self, plan: int) -> None:
        """Every plan up to `plan` is done."""
        while self._pending and self._pending[0][0] <= plan:
            self._free.append(self._pending.popleft()[1])

    def planned(self, plan: int, slots: Int32Array, counts: Int32Array) -> None:
        """The rows of a plan are settled: the slots are in it, with so many positions each. It took the releases along."""
        self.released = []
        self.ahead[slots] += counts
        self.in_flight[slots] += 1
        self.last_plan[slots] = plan

    def due(self, slots: Int32Array, generations: Int32Array) -> list[int]:
        """Return those of a plan's slots that are still the same sequence's and have come to their event."""
        due: BoolArray = (self.generation[slots] == generations) & (self.computed[slots] >= self.event[slots])
        return slots[due].tolist()

    def append(self, slots: Int32Array, ids: Int32Array) -> BoolArray:
        """Append one sampled token per slot; returns which slots stop by it."""
        position = self.length[slots]
        self.tokens[slots, position] = ids
        position += 1
        self.length[slots] = position
        stops = (self.stop_ids[slots] == ids[:, None]).any(axis=1)
        if self.many_stops:
            for row, slot in enumerate(slots.tolist()):
                if slot in self.many_stops and int(ids[row]) in self.many_stops[slot]:
                    stops[row] = True
        return stops & (position > self.min_length[slots])
