"""From a plan and the slots to one forward pass, without a loop over rows.

Shapes: R rows of the plan, T tokens of the step, S sampling rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.engine.kvcache.geometry import GroupGeometry
from octavo.nn.context import ForwardContext, GroupInputs, StateInputs
from octavo.protocol.step import Admission, StepPlan
from octavo.worker.pages import PagePool
from octavo.worker.sampling.rows import SlotArray
from octavo.worker.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step computes.

    ids: int64 [T]. sampling: int64 [S] on the host, the plan's rows that sample; slots: theirs. last: int64 [S], the tokens
    whose logits they need. positions: int64 [S], of the tokens they will get.
    """

    ids: Tensor
    context: ForwardContext
    sampling: SlotArray
    slots: SlotArray
    last: Tensor
    positions: Tensor


def make_batch(plan: StepPlan, slots: Slots, pool: PagePool) -> Batch:
    """Build the inputs of a plan with at least one row.

    A row that starts at FROM_DEVICE computes its last token: there are no drafts to check yet. A row whose slot was
    released reads and writes no page but the scratch page.
    """
    rows = plan.slots.astype(np.int64)
    going_on = plan.starts < 0
    counts = np.where(going_on, 1, plan.counts).astype(np.int64)
    ends = np.where(going_on, slots.bounds[rows], plan.starts + counts)
    assert (ends <= slots.bounds[rows]).all() and (counts > 0).all(), "a row computes tokens that it does not have"
    query_starts = np.concatenate([[0], counts.cumsum()])
    row_of_token = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(query_starts[-1]) - query_starts[row_of_token]
    sampling = np.flatnonzero(plan.samples)

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(slots.device)

    row_slots = put(rows)
    starts = torch.where(put(going_on).bool(), slots.lengths[row_slots] - 1, put(plan.starts)).clamp(min=0)
    lengths = starts + put(counts)
    token_rows = put(row_of_token)
    token_slots = row_slots[token_rows]
    positions = starts[token_rows] + put(within)
    longest = max(1, int(ends.max()))
    context = ForwardContext(
        positions=positions,
        query_starts=put(query_starts).to(torch.int32),
        lengths=lengths.to(torch.int32),
        groups=tuple(
            _state_inputs(group, table[row_slots], starts, lengths)
            if group.is_state
            else _encoder_inputs(group, table[row_slots], int(slots.encoder_bounds[rows].max()))
            if group.is_encoder
            else _group_inputs(group, table, row_slots, token_slots, positions, longest)
            for group, table in zip(pool.geometry.groups, slots.tables, strict=True)
        ),
        layers=pool.layers,
        encoder_lengths=slots.encoder_lengths[row_slots] if pool.geometry.has_encoder else None,
    )
    return Batch(
        ids=slots.history[token_slots, positions].long(),
        context=context,
        sampling=sampling,
        slots=rows[sampling],
        last=put(query_starts[1:][sampling] - 1),
        positions=lengths[put(sampling)],
    )


def make_encoder_batch(admissions: Sequence[Admission], slots: Slots, pool: PagePool) -> tuple[Tensor, ForwardContext]:
    """Build the pass that encodes the inputs of new sequences: ids, int64 [T], and where their output is kept."""
    counts = np.array([len(admission.encoder_tokens) for admission in admissions], np.int64)
    query_starts, device = np.concatenate([[0], counts.cumsum()]), slots.device
    within = np.arange(query_starts[-1]) - np.repeat(query_starts[:-1], counts)
    owners = np.repeat(np.array([admission.slot for admission in admissions], np.int64), counts)
    positions, token_slots = (torch.from_numpy(array).to(device) for array in (within, owners))
    row_slots = torch.tensor([admission.slot for admission in admissions], device=device)
    context = ForwardContext(
        positions=positions,
        query_starts=torch.from_numpy(query_starts).to(device, torch.int32),
        lengths=slots.encoder_lengths[row_slots],
        groups=tuple(
            _group_inputs(group, table, row_slots, token_slots, positions, int(counts.max()))
            if group.is_encoder
            else _scratch_inputs(group, pool.scratch, positions)
            for group, table in zip(pool.geometry.groups, slots.tables, strict=True)
        ),
        layers=pool.layers,
    )
    ids = np.concatenate([admission.encoder_tokens for admission in admissions]).astype(np.int64)
    return torch.from_numpy(ids).to(device), context


def make_dummy_batch(num_tokens: int, pool: PagePool, device: torch.device) -> Batch:
    """Build a pass over rows of one token each that touches the scratch page only."""
    zeros = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    groups = tuple(_scratch_inputs(group, pool.scratch, zeros) for group in pool.geometry.groups)
    ones = torch.ones(num_tokens, dtype=torch.int32, device=device)
    context = ForwardContext(
        positions=zeros,
        query_starts=torch.arange(num_tokens + 1, dtype=torch.int32, device=device),
        lengths=ones,
        groups=groups,
        layers=pool.layers,
        encoder_lengths=ones if pool.geometry.has_encoder else None,
    )
    none = np.zeros(0, np.int64)
    return Batch(ids=zeros, context=context, sampling=none, slots=none, last=zeros[:0], positions=zeros[:0])


def _scratch_inputs(group: GroupGeometry, scratch: int, zeros: Tensor) -> GroupInputs | StateInputs:
    pages = torch.full((len(zeros), group.pages_per_block), scratch, dtype=torch.int64, device=zeros.device)
    if group.is_state:
        return StateInputs(before=pages, after=pages, fresh=zeros == 0)
    return GroupInputs(
        table=pages.to(torch.int32),
        write_pages=pages,
        write_offsets=zeros,
        block=group.block,
        pages_per_block=group.pages_per_block,
    )


def _encoder_inputs(group: GroupGeometry, table: Tensor, longest: int) -> GroupInputs:
    """Find what the encoder left; nothing is written there any more."""
    none = torch.zeros(0, dtype=torch.int64, device=table.device)
    return GroupInputs(
        table=table[:, : max(1, group.blocks_of(longest)) * group.pages_per_block],
        write_pages=none.view(0, 1).expand(0, group.pages_per_block),
        write_offsets=none,
        block=group.block,
        pages_per_block=group.pages_per_block,
    )


def _state_inputs(group: GroupGeometry, table: Tensor, starts: Tensor, lengths: Tensor) -> StateInputs:
    """Find a row's states: that after n tokens is number n of as many as are live at once, round and round."""
    columns = torch.arange(group.pages_per_block, device=table.device)
    before, after = (
        table.gather(1, (number % group.live)[:, None] * group.pages_per_block + columns).long()
        for number in (starts, lengths)
    )
    return StateInputs(before=before, after=after, fresh=starts == 0)


def _group_inputs(
    group: GroupGeometry, table: Tensor, row_slots: Tensor, token_slots: Tensor, positions: Tensor, longest: int
) -> GroupInputs:
    # Only the columns that the longest row reaches: the table costs what sequences take, not what they might.
    width = group.blocks_of(longest) * group.pages_per_block
    columns = torch.arange(group.pages_per_block, device=positions.device)
    places = (positions // group.block)[:, None] * group.pages_per_block + columns
    return GroupInputs(
        table=table[row_slots, :width],
        write_pages=table[token_slots[:, None], places].long(),
        write_offsets=positions % group.block,
        block=group.block,
        pages_per_block=group.pages_per_block,
    )
