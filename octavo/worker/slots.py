"""What a worker keeps of every running sequence, in arrays indexed by slot.

N slots, and one more that is nobody's (`void`): rows that only fill up a step belong to it. The arrays lie on the device and
the device writes sampled tokens into them, so that the next step needs nothing from the host. Only what changed travels:
admissions, releases and table rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.ops.draw.reference import append
from octavo.protocol.arrays import Int32Array
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.step import Admission, StepPlan
from octavo.worker.pages import PagePool
from octavo.worker.sampling.processors import LogitsProcessor
from octavo.worker.sampling.rows import SamplingRows, SlotArray

_FREE = -1


class Slots:
    """State of all slots.

    history: int32 [N + 1, max_model_len], token ids; rows are filled up to `lengths`: int64 [N + 1]. tables: per group int32
    [N + 1, columns], the page in each column, `scratch` where there is none, so that a row that comes too late harms nobody.
    span_tables: per group int32 [columns], the pages of what rows share; span_length: int32 [1], its tokens; skips: int32
    [N + 1], as many for slots that begin with it.
    On the host, pooling: of the slots that ask for a vector; int64 [N]: bounds, what it knows of lengths, never less than the
    device's; generations, -1 if free. has_span: whether slots share anything.
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
        self.void = num_slots
        self.scratch = pool.scratch
        self.max_model_len = max_model_len
        self.device = device
        # Not filled: on a CPU a row takes memory only as far as it is written. Stale rows may read the first column.
        self.history = torch.empty((num_slots + 1, max_model_len), dtype=torch.int32, device=device)
        self.history[:, 0] = self.history[self.void] = 0
        self.lengths = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self.tables = tuple(
            torch.full(
                (num_slots + 1, g.blocks_of(max_model_len) * g.pages_per_block),
                pool.scratch,
                dtype=torch.int32,
                device=device,
            )
            for g in pool.geometry.groups
        )
        self.span_tables = tuple(table[0].clone() for table in self.tables)
        self.span_length = torch.zeros(1, dtype=torch.int32, device=device)
        self.skips = torch.zeros(num_slots + 1, dtype=torch.int32, device=device)
        self.has_span = False
        self.encoder_lengths = torch.zeros(num_slots + 1, dtype=torch.int32, device=device)
        self.encoder_bounds = np.zeros(num_slots, np.int64)
        self.pooling: dict[int, PoolingParams] = {}
        self.bounds = np.zeros(num_slots, np.int64)
        self.sampling = SamplingRows(self.history, self.bounds, vocab_size, processors)
        self.generations = np.full(num_slots, _FREE, np.int64)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        kept = (self.history, self.lengths, self.encoder_lengths, *self.tables)
        return sum(tensor.numel() * tensor.itemsize for tensor in kept)

    def stage(self, plan: StepPlan) -> list[np.ndarray]:
        """Take what a plan changes, as far as the host keeps it; return what `apply` needs on the device, whole numbers."""
        self._release(plan.releases.astype(np.int64))
        if plan.span is not None:
            self.has_span = len(plan.span) > 1
        for admission in plan.admissions:
            self._admit(admission)
        if plan.admissions:
            self.sampling.admit(plan.admissions)
        news = [(admission.slot, len(admission.tokens), admission.num_encoder) for admission in plan.admissions]
        tokens = [admission.tokens for admission in plan.admissions]
        return [
            plan.releases,
            np.array(news, np.int64).reshape(-1, 3),
            np.concatenate(tokens) if tokens else np.zeros(0, np.int64),
            *self._last_writes(plan.table),
            *(() if plan.span is None else (plan.span,)),
        ]

    def apply(self, plan: StepPlan, staged: Sequence[Tensor]) -> None:
        """Change the device's arrays: clear slots that were given back, then admit, then write page tables.

        A row that is still to come of a slot that was given back touches the scratch page only.
        """
        freed, news, tokens, *writes = staged
        if len(freed):
            self.lengths[freed] = self.skips[freed] = 0
            self.encoder_lengths[freed] = 0
            for table in self.tables:
                table[freed] = self.scratch
        if plan.admissions:
            slots, lengths, encoder_lengths = news.unbind(1)
            self.lengths[slots] = lengths
            self.encoder_lengths[slots] = encoder_lengths.to(torch.int32)
            parts = tokens.split([len(admission.tokens) for admission in plan.admissions])
            for admission, part in zip(plan.admissions, parts, strict=True):
                self.history[admission.slot, : len(part)] = part
        for table, rows in zip(self.tables, writes[: len(self.tables)], strict=True):
            if len(rows):
                owners, columns, pages = rows.unbind(1)
                table[owners, columns] = pages.to(torch.int32)
        if plan.span is not None:
            self._share(writes[-1][:1].to(torch.int32), writes[-1][1:])

    def _share(self, length: Tensor, members: Tensor) -> None:
        self.span_length.copy_(length)
        self.skips.zero_()
        if len(members):
            self.skips[members] = length
            for shared, table in zip(self.span_tables, self.tables, strict=True):
                shared.copy_(table[members[:1]].view(-1))

    def append(self, slots: Tensor, positions: Tensor, ids: Tensor, ok: Tensor) -> None:
        """Add sampled tokens to their sequences. slots, positions, ids: int64 [S]; rows that are not `ok` stay."""
        append(self.history, self.lengths, slots, positions, ids, ok)

    def advance(self, slots: SlotArray) -> None:
        """Note on the host that the slots may have a token more."""
        self.bounds[slots] = np.minimum(self.bounds[slots] + 1, self.max_model_len)

    def _release(self, freed: SlotArray) -> None:
        if len(freed) == 0:
            return
        self.sampling.release(freed)
        for slot in freed.tolist():
            self.pooling.pop(slot, None)
        self.bounds[freed] = self.encoder_bounds[freed] = 0
        self.generations[freed] = _FREE

    def _admit(self, admission: Admission) -> None:
        slot, length = admission.slot, len(admission.tokens)
        assert self.generations[slot] == _FREE, f"slot {slot} is taken"
        assert 0 < length <= self.max_model_len, f"a history of {length} tokens"
        self.bounds[slot] = length
        self.generations[slot] = admission.generation
        self.encoder_bounds[slot] = admission.num_encoder
        if admission.pooling is not None:
            self.pooling[slot] = admission.pooling

    def _last_writes(self, rows: Int32Array) -> list[Int32Array]:
        """Return each group's table entries, [m, 3] of (slot, column, page); of two for one place the last counts.

        rows: int32 [m, 4] of (group, slot, column, page).
        """
        if len(rows) == 0:
            return [rows[:, 1:]] * len(self.tables)
        # A slot may change hands within a plan. Which of two writes to one place wins is undefined on a device.
        _, last = np.unique(rows[::-1, :3], axis=0, return_index=True)
        rows = rows[len(rows) - 1 - last]
        return [rows[rows[:, 0] == group, 1:] for group in range(len(self.tables))]
