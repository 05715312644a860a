"""The rows of one plan while it is being made."""

from __future__ import annotations

import numpy as np

from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.slots import SlotTable
from octavo.protocol.arrays import BoolArray, Int32Array, int32
from octavo.protocol.step import FROM_DEVICE


class Rows:
    """Decodes as arrays, prefill chunks one by one. A slot dropped late leaves no row.

    budget: tokens left. short: a running sequence found no page, so nobody new may take the ones that come back.
    """

    def __init__(self, limits: ScheduleLimits) -> None:
        self.budget = limits.max_num_batched_tokens
        self.short = False
        self.decode_ends = int32()
        self._tokens_per_step = min(limits.tokens_per_step, limits.max_num_batched_tokens)
        self._decode_slots = int32()
        self._decode_counts = int32()
        self._chunks: dict[int, tuple[int, int, bool]] = {}
        self._dropped: set[int] = set()

    @property
    def num_rows(self) -> int:
        """Rows so far; dropped decodes are still counted."""
        return len(self._decode_slots) + len(self._chunks)

    def decode(self, slots: Int32Array, table: SlotTable) -> None:
        """Add the decoding slots: each goes on from the length that the device knows."""
        planned = table.computed[slots] + table.ahead[slots]
        self._decode_slots = slots
        self._decode_counts = np.minimum(self._tokens_per_step, table.limit[slots] - 1 - planned).astype(np.int32)
        self.decode_ends = planned + self._decode_counts
        self.budget -= int(self._decode_counts.sum())

    def chunk(self, slot: int, start: int, count: int, samples: bool) -> None:
        """Add a prefill chunk."""
        self._chunks[slot] = (start, count, samples)
        self.budget -= count

    def drop(self, slot: int) -> None:
        """Take a slot's row out again: it was preempted, or found no page."""
        if self._chunks.pop(slot, None) is None:
            self._dropped.add(slot)

    def arrays(self) -> tuple[Int32Array, Int32Array, Int32Array, BoolArray]:
        """Return slots, starts, counts and samples as a plan carries them."""
        slots, counts = self._decode_slots, self._decode_counts
        if self._dropped:
            keep = ~np.isin(slots, list(self._dropped))
            slots, counts = slots[keep], counts[keep]
        num_decodes, chunks = len(slots), self._chunks.values()
        starts = np.full(num_decodes + len(chunks), FROM_DEVICE, np.int32)
        samples = np.ones(num_decodes + len(chunks), np.bool_)
        if chunks:
            slots = np.concatenate([slots, int32(list(self._chunks))])
            counts = np.concatenate([counts, int32([count for _, count, _ in chunks])])
            starts[num_decodes:] = [start for start, _, _ in chunks]
            samples[num_decodes:] = [sample for _, _, sample in chunks]
        return slots, starts, counts, samples
