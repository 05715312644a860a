"""What a worker keeps of every running sequence, in arrays indexed by slot.

N slots. The arrays lie on the device and the device writes sampled tokens into them, so that the next step needs nothing
from the host. Only what changed travels: admissions, releases and table rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.protocol.arrays import Int32Array
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.step import Admission
from octavo.worker.pages import PagePool
from octavo.worker.sampling.processors import LogitsProcessor
from octavo.worker.sampling.rows import SamplingRows, SlotArray

_FREE = -1


class Slots:
    """State of all slots.

    history: int32 [N, max_model_len], token ids; rows are filled up to `lengths`: int64 [N]. tables: per group int32 [N,
    columns], the page in each column, `scratch` where there is none, so that a row that comes too late harms nobody. On the
    host, pooling: of the slots that ask for a vector; int64 [N]: bounds, what it knows of lengths, never less than the
    device's; generations, -1 if free.
    """

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        vocab_size: int,
        pool: PagePool,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        device = pool.memory.device
        self.scratch = pool.scratch
        self.max_model_len = max_model_len
        self.device = device
        # Not filled: on a CPU a row takes memory only as far as it is written. Stale rows may read the first column.
        self.history = torch.empty((num_slots, max_model_len), dtype=torch.int32, device=device)
        self.history[:, 0] = 0
        self.lengths = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.tables = tuple(
            torch.full(
                (num_slots, g.blocks_of(max_model_len) * g.pages_per_block),
                pool.scratch,
                dtype=torch.int32,
                device=device,
            )
            for g in pool.geometry.groups
        )
        self.encoder_lengths = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.encoder_bounds = np.zeros(num_slots, np.int64)
        self.pooling: dict[int, PoolingParams] = {}
        self.bounds = np.zeros(num_slots, np.int64)
        self.sampling = SamplingRows(self.history, self.bounds, vocab_size, processors)
        self.generations = np.full(num_slots, _FREE, np.int64)

    def release(self, slots: Int32Array) -> None:
        """Clear slots that were given back. A row of theirs that is still to come touches the scratch page only."""
        if len(slots) == 0:
            return
        freed = slots.astype(np.int64)
        index = torch.from_numpy(freed).to(self.device)
        self.lengths[index] = 0
        self.encoder_lengths[index] = 0
        for table in self.tables:
            table[index] = self.scratch
        self.sampling.release(freed)
        for slot in freed.tolist():
            self.pooling.pop(slot, None)
        self.bounds[freed] = self.encoder_bounds[freed] = 0
        self.generations[freed] = _FREE

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Give free slots to sequences, with their whole history."""
        if not admissions:
            return
        for admission in admissions:
            slot, length = admission.slot, len(admission.tokens)
            assert self.generations[slot] == _FREE, f"slot {slot} is taken"
            assert 0 < length <= self.max_model_len, f"a history of {length} tokens"
            self.history[slot, :length] = torch.from_numpy(np.array(admission.tokens, np.int32))
            self.lengths[slot] = length
            self.bounds[slot] = length
            self.generations[slot] = admission.generation
            if admission.num_encoder:
                self.encoder_lengths[slot] = self.encoder_bounds[slot] = admission.num_encoder
            if admission.pooling is not None:
                self.pooling[slot] = admission.pooling
        self.sampling.admit(admissions)

    def write_tables(self, rows: Int32Array) -> None:
        """Set page table entries. rows: int32 [m, 4] of (group, slot, column, page); of two for one place the last counts."""
        if len(rows) == 0:
            return
        # A slot may change hands within a plan. Which of two writes to one place wins is undefined on a device.
        _, last = np.unique(rows[::-1, :3], axis=0, return_index=True)
        rows = rows[len(rows) - 1 - last]
        for group, table in enumerate(self.tables):
            mine = rows[rows[:, 0] == group]
            if len(mine) > 0:
                slots, columns, pages = torch.from_numpy(mine[:, 1:].T.astype(np.int64)).to(self.device)
                table[slots, columns] = pages.to(torch.int32)

    def append(self, slots: SlotArray, positions: Tensor, ids: Tensor, ok: Tensor) -> None:
        """Add sampled tokens to their sequences, on the device. positions, ids: int64 [S]; rows that are not `ok` stay."""
        index = torch.from_numpy(slots).to(self.device)
        fits = ok & (positions < self.max_model_len)
        places = positions.clamp(max=self.max_model_len - 1)
        self.history[index, places] = torch.where(fits, ids.to(torch.int32), self.history[index, places])
        self.lengths[index] = torch.where(fits, positions + 1, self.lengths[index])
        self.bounds[slots] = np.minimum(self.bounds[slots] + 1, self.max_model_len)
