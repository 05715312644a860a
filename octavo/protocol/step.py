"""One step: what the scheduler asks of the workers (`StepPlan`) and what they answer (`StepResult`).

Both carry only what changed, in flat arrays indexed by slot. Lengths the host cannot know yet (after a speculative step)
live on the device; a plan then grants positions and pages as upper bounds.
"""

from __future__ import annotations

import msgspec
import numpy as np

from octavo.protocol.arrays import BoolArray, Float32Array, Int32Array, Uint8Array, int32, rows32
from octavo.protocol.control import Ack, Control
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor somewhere else: bulk data never rides inside a record.

    place: how to reach it ("shm:NAME", "file:PATH", "connector:NAME"). dtype: torch's name without "torch.".
    owner: the process that frees it. lease: seconds until the owner may free it without a word; 0 is until released.
    """

    place: str
    dtype: str
    shape: tuple[int, ...]
    owner: str
    lease: float = 0.0


# Where a page lies, in copies.
DEVICE, HOST = 0, 1
# `StepPlan.starts` of a row that goes on from the length the device knows.
FROM_DEVICE = -1


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence takes a slot. It brings its whole history, so the worker can rebuild all state of the slot.

    generation: counts the slot's owners. tokens: int32, prompt and whatever was generated before a preemption.
    num_prompt: how many of them are the prompt. num_computed: leading positions whose pages are already filled. pooling:
    a vector is asked for, not tokens. num_encoder: tokens of the encoder's input. encoder_tokens: int32, to be encoded
    before the rows of this plan; empty if that is done.
    """

    slot: int
    generation: int
    key: int
    choice: int
    tokens: Int32Array
    num_prompt: int
    num_computed: int
    seed: int
    stop_ids: tuple[int, ...]
    sampling: SamplingParams
    bad_tokens: tuple[tuple[int, ...], ...] = ()
    pooling: PoolingParams | None = None
    num_encoder: int = 0
    encoder_tokens: Int32Array = msgspec.field(default_factory=int32)


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Fill pages of a slot from outside. pages: int32 `[m, 3]` of (group, column, page), as in a plan's table."""

    ticket: int
    slot: int
    generation: int
    source: BlobRef
    pages: Int32Array


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One step for all ranks. n rows, each a slot that computes some positions.

    id: counts up by one. slots: int32 [n]. starts: int32 [n], first position computed, or FROM_DEVICE: go on from the
    device's own length (its last token and any drafts). counts: int32 [n], positions granted, an upper bound for
    FROM_DEVICE rows. samples: bool [n], whether the row's last position gives tokens. pools: int32, the rows that give a
    vector; each is a whole prompt. scores: int32, the rows whose tokens are of a prompt of which log-probabilities are asked.
    masked: int32, the rows that sample only when `Masks` of this plan have come.
    admissions: before the rows. releases: int32, slots given back; their table rows are dead.
    table: int32 [m, 4] of (group, slot, column, page) written before the rows; column = block index * pages per block + j.
    span: int32 [1 + m], what rows share, None if as before: its tokens, full blocks, 0 for none; and the slots that begin with
    it, in whose tables its pages lie.
    copies_before, copies_after: int32 [k, 4] of (from place, from page, to place, to page), done in order.
    shape: token bucket agreed by ranks that must step together, 0 for none. dummy: compute, but write and answer nothing.
    """

    id: int
    slots: Int32Array = msgspec.field(default_factory=int32)
    starts: Int32Array = msgspec.field(default_factory=int32)
    counts: Int32Array = msgspec.field(default_factory=int32)
    samples: BoolArray = msgspec.field(default_factory=lambda: np.zeros(0, np.bool_))
    pools: Int32Array = msgspec.field(default_factory=int32)
    scores: Int32Array = msgspec.field(default_factory=int32)
    masked: Int32Array = msgspec.field(default_factory=int32)
    admissions: tuple[Admission, ...] = ()
    releases: Int32Array = msgspec.field(default_factory=int32)
    table: Int32Array = msgspec.field(default_factory=lambda: rows32([], 4))
    span: Int32Array | None = None
    copies_before: Int32Array = msgspec.field(default_factory=lambda: rows32([], 4))
    copies_after: Int32Array = msgspec.field(default_factory=lambda: rows32([], 4))
    transfers: tuple[Transfer, ...] = ()
    controls: tuple[Control, ...] = ()
    shape: int = 0
    dummy: bool = False


class Masks(msgspec.Struct, frozen=True, kw_only=True, tag="masks"):
    """Which tokens may come in rows of a plan that is under way: it may have been made before that was known.

    rows: int32 [m], of the plan's `masked`; one that is not among them has ended, and may take any token. positions: int32 [m],
    how many drafts of the row stand before it. bits: uint8 [m, w], bit i % 8 of byte i // 8 says whether token i may come.
    """

    plan: int
    rows: Int32Array
    positions: Int32Array
    bits: Uint8Array


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of sampled tokens; t tokens, row-major with the result's ids, k alternatives.

    chosen: float32 [t]. ranks: int32 [t], 1 is the likeliest. top_ids: int32 [t, k]. top: float32 [t, k], falling; a token
    whose request asked for fewer has -1 ids at the end. wanted: bool [t], False where the request asked for none.
    """

    wanted: BoolArray
    chosen: Float32Array
    ranks: Int32Array
    top_ids: Int32Array
    top: Float32Array

    def select(self, keep: BoolArray) -> TokenLogprobs:
        """Return those of some of the tokens. keep: bool [t]."""
        return TokenLogprobs(**{name: column[keep] for name, column in msgspec.structs.asdict(self).items()})


class RowError(msgspec.Struct, frozen=True, kw_only=True):
    """Row `row` of the plan failed alone (NaN logits); its sequence ends with an error."""

    row: int
    message: str


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to plan `plan`. s rows: the plan's sampling rows, in order; t tokens in all.

    offsets: int32 [s + 1] into ids. ids: int32 [t], 0..k sampled tokens a row. draft_offsets, draft_ids: the same for the
    drafts proposed for the next step (None: no drafter). vectors: float32 [p, d], of the plan's `pools`, in order.
    scores: of the plan's `scores`, in order: of the prompt's tokens behind each position of the row.
    finished, failed: tickets of transfers that ended.
    """

    plan: int
    offsets: Int32Array = msgspec.field(default_factory=lambda: int32([0]))
    ids: Int32Array = msgspec.field(default_factory=int32)
    draft_offsets: Int32Array | None = None
    draft_ids: Int32Array | None = None
    logprobs: TokenLogprobs | None = None
    vectors: Float32Array | None = None
    scores: TokenLogprobs | None = None
    errors: tuple[RowError, ...] = ()
    finished: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    acks: tuple[Ack, ...] = ()
