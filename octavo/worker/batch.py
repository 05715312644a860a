"""From a plan and the slots to one forward pass, without a loop over rows.

The host says little of a step (`StepRows`: which slots, and where their tokens begin), in one array of numbers; everything
else the device works out of them, in the same way whether a graph replays it or not.

Shapes: R rows, T tokens of the step, S sampling rows. A recorded step has more rows and tokens than a plan fills: those rows
are the void slot's, and those tokens belong to no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.engine.kvcache.geometry import GroupGeometry
from octavo.nn.context import ForwardContext, GroupInputs, StateInputs
from octavo.ops.paged_attention import Span
from octavo.protocol.step import Admission, StepPlan
from octavo.worker.pages import PagePool
from octavo.worker.sampling.rows import SlotArray
from octavo.worker.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What is settled before a step runs. decodes: every row computes one token, the newest that it has.

    widths: for each group, the columns of a page table that any row reaches. shared: what decoding rows share is read once.
    """

    num_tokens: int
    num_rows: int
    decodes: bool
    widths: tuple[int, ...]
    shared: bool = False

    @property
    def num_numbers(self) -> int:
        """How many numbers tell the device of such a step."""
        return self.num_rows + 1 if self.decodes else 4 * (self.num_rows + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """A plan's rows on the host. slots, starts: int64 [R]; starts: -1 for what the device knows. query_starts: int64 [R + 1].

    sampling: int64 [S], the rows that sample. longest: tokens of the longest row, an upper bound. decodes,
    shared: see `StepShape`.
    """

    slots: SlotArray
    starts: SlotArray
    query_starts: SlotArray
    sampling: SlotArray
    longest: int
    decodes: bool
    shared: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return int(self.query_starts[-1])

    @property
    def all_sample(self) -> bool:
        """Whether every row samples."""
        return len(self.sampling) == len(self.slots)

    def numbers(self, shape: StepShape, void: int) -> np.ndarray:
        """Return what tells the device of a step of this shape, which may be larger: int64 [shape.num_numbers]."""
        count = len(self.slots)
        if shape.decodes:
            numbers = np.full(shape.num_rows + 1, void, np.int64)
            numbers[:count] = self.slots
            return numbers
        numbers = np.empty((4, shape.num_rows + 1), np.int64)
        numbers[0], numbers[1], numbers[2], numbers[3] = void, -1, self.num_tokens, void
        numbers[0, :count], numbers[1, :count] = self.slots, self.starts
        numbers[2, : len(self.query_starts)] = self.query_starts
        numbers[3, self.sampling] = self.slots[self.sampling]
        return numbers.reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step computes. ids: int64 [T].

    Of every row, last: int64 [R], its last token; targets: int64 [R], the slot that a token sampled from there belongs to,
    void if none is; lengths: int64 [R], the position of that token.
    """

    ids: Tensor
    context: ForwardContext
    last: Tensor
    targets: Tensor
    lengths: Tensor


def plan_rows(plan: StepPlan, slots: Slots) -> StepRows:
    """Return the rows of a plan that has at least one.

    A row that starts at FROM_DEVICE computes its last token: there are no drafts to check yet. A row whose slot was
    released reads and writes no page but the scratch page.
    """
    rows = plan.slots.astype(np.int64)
    going_on = plan.starts < 0
    counts = np.where(going_on, 1, plan.counts).astype(np.int64)
    ends = np.where(going_on, slots.bounds[rows], plan.starts + counts)
    assert (ends <= slots.bounds[rows]).all() and (counts > 0).all(), "a row computes tokens that it does not have"
    return StepRows(
        slots=rows,
        starts=plan.starts.astype(np.int64),
        query_starts=np.concatenate([[0], counts.cumsum()]),
        sampling=np.flatnonzero(plan.samples),
        longest=max(1, int(ends.max())),
        decodes=bool(going_on.all() and plan.samples.all()),
        shared=slots.has_span and bool(going_on.any()),
    )


def void_rows(num_rows: int, num_tokens: int, longest: int) -> StepRows:
    """Return rows that are nobody's and read and write the scratch page only; each has its share of tokens, at most `longest`."""
    none, num_tokens = np.zeros(0, np.int64), min(num_tokens, num_rows * longest)
    return StepRows(
        slots=none,
        starts=none,
        query_starts=np.arange(num_rows + 1) * num_tokens // num_rows,
        sampling=none,
        longest=-(-num_tokens // num_rows),
        decodes=num_rows == num_tokens,
    )


def shape_of(rows: StepRows, slots: Slots, pool: PagePool) -> StepShape:
    """Return the shape that fits the rows exactly."""
    # Only the columns that the longest row reaches: a table costs what sequences take, not what they might.
    encoder = max(1, int(slots.encoder_bounds[rows.slots].max(initial=0)))
    widths = tuple(
        group.blocks_of(encoder if group.is_encoder else rows.longest) * group.pages_per_block
        for group in pool.geometry.groups
    )
    return StepShape(
        num_tokens=rows.num_tokens,
        num_rows=len(rows.query_starts) - 1,
        decodes=rows.decodes,
        widths=widths,
        shared=rows.shared,
    )


def make_batch(numbers: Tensor, shape: StepShape, slots: Slots, pool: PagePool) -> Batch:
    """Work out a step from its numbers, int64 [shape.num_numbers], on the device alone."""
    num_rows = shape.num_rows
    if shape.decodes:
        row_slots = token_slots = targets = numbers[:num_rows]
        starts = positions = (slots.lengths[row_slots] - 1).clamp_(min=0)
        query_starts = torch.arange(num_rows + 1, device=numbers.device)
        lengths = starts + 1
    else:
        owners, starts, query_starts, targets = numbers.view(4, -1).unbind()
        row_slots, targets = owners[:num_rows], targets[:num_rows]
        starts = torch.where(starts < 0, slots.lengths[owners] - 1, starts).clamp_(min=0)
        tokens = torch.arange(shape.num_tokens, device=numbers.device)
        # Tokens behind the last row's end are in row R, which is void.
        token_rows = torch.searchsorted(query_starts[1:], tokens, right=True)
        token_slots = owners[token_rows]
        positions = (starts[token_rows] + tokens - query_starts[token_rows]).clamp_(max=slots.max_model_len - 1)
        starts = starts[:num_rows]
        lengths = starts + query_starts.diff()
    spans: list[Span | None] = [None] * len(shape.widths)
    if shape.shared:
        skips = slots.skips[row_slots]
        spans = [Span(table=table, length=slots.span_length, skips=skips) for table in slots.span_tables]
    context = ForwardContext(
        positions=positions,
        query_starts=query_starts.to(torch.int32),
        lengths=lengths.to(torch.int32),
        groups=tuple(
            _state_inputs(group, table[row_slots], starts, lengths)
            if group.is_state
            else _encoder_inputs(group, table[row_slots, :width])
            if group.is_encoder
            else _group_inputs(group, table, table[row_slots, :width], token_slots, positions, span)
            for group, table, width, span in zip(pool.geometry.groups, slots.tables, shape.widths, spans, strict=True)
        ),
        layers=pool.layers,
        encoder_lengths=slots.encoder_lengths[row_slots] if pool.geometry.has_encoder else None,
        decodes=shape.decodes,
    )
    return Batch(
        ids=slots.history[token_slots, positions].long(),
        context=context,
        last=(query_starts[1:] - 1).clamp_(min=0),
        targets=targets,
        lengths=lengths,
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
            _group_inputs(
                group,
                table,
                table[row_slots, : group.blocks_of(int(counts.max())) * group.pages_per_block],
                token_slots,
                positions,
            )
            if group.is_encoder
            else _scratch_inputs(group, pool.scratch, positions)
            for group, table in zip(pool.geometry.groups, slots.tables, strict=True)
        ),
        layers=pool.layers,
    )
    ids = np.concatenate([admission.encoder_tokens for admission in admissions]).astype(np.int64)
    return torch.from_numpy(ids).to(device), context


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


def _encoder_inputs(group: GroupGeometry, table: Tensor) -> GroupInputs:
    """Find what the encoder left; nothing is written there any more. table: int32 [R, columns]."""
    none = torch.zeros(0, dtype=torch.int64, device=table.device)
    return GroupInputs(
        table=table,
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
    group: GroupGeometry,
    whole: Tensor,
    table: Tensor,
    token_slots: Tensor,
    positions: Tensor,
    span: Span | None = None,
) -> GroupInputs:
    """Find where tokens are read and written. whole: int32 [N + 1, columns], of all slots. table: int32 [R, C]."""
    columns = torch.arange(group.pages_per_block, device=positions.device)
    places = (positions // group.block)[:, None] * group.pages_per_block + columns
    return GroupInputs(
        table=table,
        write_pages=whole[token_slots[:, None], places].long(),
        write_offsets=positions % group.block,
        block=group.block,
        pages_per_block=group.pages_per_block,
        span=span,
    )
