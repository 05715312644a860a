"""Which leading tokens many running sequences share, so that a step of decodes reads their pages once.

Sequences share pages where they took them from the cache or forked; as a page is shared only behind shared ones, the longest
common front of their page tables says it all.
"""

from __future__ import annotations

import numpy as np

from octavo.base.intmath import ceil_div
from octavo.engine.kvcache.geometry import Geometry
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.state import ScheduleState
from octavo.protocol.arrays import Int32Array, int32, rows32

# What a plan says where nothing is worth it.
NO_SPAN = int32([0])


class Spans:
    """Page tables of the first group that keeps every token, and the span that was last told.

    tables: of plans since others were running. changes: how often others were, see `ScheduleState`.
    """

    def __init__(self, geometry: Geometry, limits: ScheduleLimits) -> None:
        full = [
            (number, group)
            for number, group in enumerate(geometry.groups)
            if group.window is None and not (group.is_state or group.is_encoder)
        ]
        self._group, self._columns, self._block = -1, 1, 1
        width = 0
        if full and limits.least_shared:
            self._group, group = full[0]
            self._columns, self._block = group.pages_per_block, group.block
            width = group.blocks_of(limits.max_model_len) * group.pages_per_block
        # Rows are touched, and so backed by memory, only as far as sequences have ever grown.
        self._pages = np.empty((limits.max_num_seqs, width), np.int32)
        self._least = ceil_div(limits.least_shared, self._block)
        self.tables = [rows32([], 4)]
        self.changes = 0
        self._told = NO_SPAN

    def update(self, state: ScheduleState) -> Int32Array | None:
        """Return what the plan with the last of the tables says of a span (see `StepPlan.span`)."""
        self.changes, told, slots = state.changes, NO_SPAN, state.current_slots()
        rows = np.concatenate(self.tables)
        self.tables = [rows[:0]]
        if self._group < 0:
            return None
        rows = rows[rows[:, 0] == self._group]
        self._pages[rows[:, 1], rows[:, 2]] = rows[:, 3]
        # Only what is computed: beyond lie the pages of whoever had the slot before.
        counts = state.slots.computed[slots] // self._block
        num_blocks, members = find_span(self._pages[:, :: self._columns], slots, counts, self._least)
        if num_blocks:
            told = np.concatenate([int32([num_blocks * self._block]), members])
        changed = not np.array_equal(told, self._told)
        self._told = told
        return told if changed else None


def find_span(pages: Int32Array, slots: Int32Array, counts: Int32Array, least: int) -> tuple[int, Int32Array]:
    """Return the length and the slots of the span that saves most: its length times all of its slots but one.

    pages: int32 [N, C], what blocks lie in, by slot. counts: int32 [n], blocks of each of the slots. least: blocks to be saved;
    (0, none) if no span saves as many. Whom to compare with is found by looking, at depths that double, for the page that most
    have: where one front is shared, at least half of the most is saved.
    """
    if len(slots) < 2:
        return 0, int32()
    depth = ceil_div(least, len(slots) - 1)
    near = far = np.flatnonzero(counts >= depth)
    best, owner = 0, -1
    while len(far) > 1:
        keys, found, numbers = np.unique(pages[slots[far], depth - 1], return_inverse=True, return_counts=True)
        far = far[found == numbers.argmax()] if len(keys) > 1 else far
        if (len(far) - 1) * depth > best:
            best, owner = (len(far) - 1) * depth, int(far[counts[far].argmax()])
        depth *= 2
        far = far[counts[far] >= depth]
    if owner < 0:
        return 0, int32()
    own = pages[slots[owner], : counts[owner]]
    differs = pages[slots[near], : len(own)] != own
    common = np.minimum(np.where(differs.any(axis=1), differs.argmax(axis=1), len(own)), counts[near])
    longest = np.sort(common)[::-1]
    saved = longest * np.arange(len(longest))
    length = int(longest[saved.argmax()])
    return (length, slots[near[common >= length]]) if saved.max() >= max(least, 1) else (0, int32())
