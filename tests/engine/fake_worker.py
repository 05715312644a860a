"""A worker that computes nothing and checks everything.

Every page remembers which prefix each of its token places holds. A row that computes a position must find, through its page
table, exactly its own history in every place it may look at; a page may not be written while a plan in flight of somebody
else still touches it. A page of a state holds the hash of everything that was folded into it, as if it were a token place.
Tokens follow from the history alone, and from what a mask allows, so what a sequence must answer is known beforehand.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.arrays import Int32Array, int32
from octavo.protocol.control import Ack
from octavo.protocol.step import FROM_DEVICE, Admission, Masks, RowError, StepPlan, StepResult

VOCABULARY = 40


def prefix_hash(tokens: list[int], salt: str = "") -> bytes:
    """Return what a place holds that was computed after `tokens`."""
    return hashlib.blake2b(np.array(tokens, np.int32).tobytes() + salt.encode(), digest_size=8).digest()


def encoder_input(key: int, length: int) -> list[int]:
    """Return the encoder's input of a request."""
    return [(key * 7 + position) % VOCABULARY for position in range(length)]


def vector_of(tokens: list[int]) -> list[float]:
    """Return the vector of a prompt."""
    return [float(byte) for byte in prefix_hash(tokens)[:3]]


def next_token(tokens: list[int], seed: int, choice: int, allowed: Collection[int] = range(VOCABULARY)) -> int:
    """Return the token that follows a history, of those that may."""
    place = hashlib.blake2b(f"{tokens} {seed} {choice}".encode(), digest_size=4).digest()[0] % VOCABULARY
    return sorted(allowed)[place % len(allowed)]


@dataclass
class Slot:
    generation: int
    key: int
    tokens: list[int]
    num_prompt: int
    seed: int
    choice: int
    num_encoder: int = 0
    drafts: list[int] = field(default_factory=list)
    table: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass
class Flight:
    """A plan whose rows are computed. sampled: tokens of each sampling row; waiting: rows that wait for masks, their drafts.

    touched: pages, and by whom. result: None until nothing waits.
    """

    plan: StepPlan
    sampled: dict[int, list[int]] = field(default_factory=dict)
    waiting: dict[int, list[int]] = field(default_factory=dict)
    touched: dict[int, tuple[int, int]] = field(default_factory=dict)
    errors: list[RowError] = field(default_factory=list)
    vectors: list[list[float]] = field(default_factory=list)
    result: StepResult | None = None


class FakeExecutor:
    """Fulfils the executor protocol. `chance` decides how many of 1..k tokens a row yields and how transfers end.

    drafter: proposes what comes next in a slot. A row with a grammar yields the drafts that come true, and one token more.
    """

    def __init__(
        self,
        geometry: Geometry,
        num_pages: int,
        *,
        tokens_per_step: int = 1,
        budget: int = 2**31,
        seed: int = 0,
        drafter: Callable[[Slot], list[int]] | None = None,
    ) -> None:
        self.geometry = geometry
        self.tokens_per_step = tokens_per_step
        self.budget = budget
        self.chance = np.random.default_rng(seed)
        self.pages: list[dict[int, bytes]] = [{} for _ in range(num_pages)]
        self.slots: dict[int, Slot] = {}
        self.drafter = drafter
        self.num_accepted = self.num_rejected = 0
        self.in_flight: deque[Flight] = deque()
        self.transfers: list[tuple[int, list[tuple[int, dict[int, bytes]]]]] = []
        self.computed_positions = 0
        self.encoded_tokens = 0
        self.failing_keys: set[int] = set()
        self.num_shared = 0
        self._span: tuple[int, list[int], dict[tuple[int, int], int]] = 0, [], {}
        self._keys: dict[int, int] = {}

    def load(self) -> WorkerReport:
        return WorkerReport(layers=(), free_bytes=0)

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def submit(self, plan: StepPlan) -> None:
        flight = Flight(plan)
        touched = flight.touched
        self._admit(plan)
        self._take_span(plan.span)
        for _, source, _, target in plan.copies_before.tolist():
            self._writable(target, None)
            self.pages[target] = dict(self.pages[source])
        self._encode(plan.admissions, touched)
        for transfer in plan.transfers:
            self._begin_transfer(transfer.ticket, self.slots[transfer.slot], transfer.pages.tolist())
        assert len(set(plan.slots.tolist())) == len(plan.slots), "a slot has two rows"
        assert plan.counts.sum() <= self.budget, "a plan computes more than its budget"
        for row, (slot_number, start, count, samples) in enumerate(
            zip(plan.slots.tolist(), plan.starts.tolist(), plan.counts.tolist(), plan.samples.tolist(), strict=True)
        ):
            assert count > 0
            slot = self.slots[slot_number]
            sampled: list[int] = []
            if row in plan.pools:
                assert (start, count, samples) == (0, len(slot.tokens), False), (
                    "a vector takes the whole prompt at once"
                )
                flight.vectors.append(vector_of(slot.tokens))
            if start != FROM_DEVICE:
                assert start + count <= len(slot.tokens)
                self._compute(slot, slot_number, start, count, touched)
                if samples:
                    assert start + count == len(slot.tokens)
                    sampled = [next_token(slot.tokens, slot.seed, slot.choice)]
                if row in plan.masked:
                    assert samples
                    flight.waiting[row] = []
            else:
                assert samples
                sampled = self._decode(flight, row, slot_number, count)
            if samples:
                if self._keys[slot_number] in self.failing_keys:
                    # What follows numbers that broke is rubbish, but the slot goes on until the host ends it.
                    slot.tokens.extend(sampled)
                    flight.errors.append(RowError(row=row, message="NaN logits"))
                    sampled = []
                    flight.waiting.pop(row, None)
                flight.sampled[row] = sampled
        self._copy_after(plan, touched)
        self.in_flight.append(flight)
        if not len(plan.masked):
            self._finish(flight)

    def _decode(self, flight: Flight, row: int, slot_number: int, count: int) -> list[int]:
        """Go on from what the device knows: by drafts that wait for masks, or by as many tokens as chance has it."""
        assert count <= self.tokens_per_step
        slot = self.slots[slot_number]
        self._see_span(slot_number)
        history, sure = list(slot.tokens), 1
        if row in flight.plan.masked:
            drafts = flight.waiting[row] = slot.drafts[: count - 1]
            history += drafts
            sure += len(drafts)
        else:
            number = int(self.chance.integers(0 if self.tokens_per_step > 1 else 1, count + 1))
            for _ in range(number):
                history.append(next_token(history, slot.seed, slot.choice))
            sure = max(number, 1)
        # Drafts past the accepted ones leave rubbish in places that were granted.
        begin = len(slot.tokens) - 1
        self._compute(slot, slot_number, begin, count, flight.touched, accepted=sure, history=history)
        return history[len(slot.tokens) :]

    def mask(self, masks: Masks) -> None:
        (flight,) = (flight for flight in self.in_flight if flight.plan.id == masks.plan)
        assert flight.result is None, "masks came twice"
        allowed: dict[tuple[int, int], list[int]] = {}
        for row, position, bits in zip(masks.rows.tolist(), masks.positions.tolist(), masks.bits, strict=True):
            assert (row, position) not in allowed, "a position has two masks"
            assert row in flight.plan.masked
            allowed[row, position] = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:VOCABULARY]).tolist()
        for row, drafts in flight.waiting.items():
            slot = self.slots[int(flight.plan.slots[row])]
            sampled, history = flight.sampled[row], list(slot.tokens)
            sampled.clear()
            for position in range(len(drafts) + 1):
                token = next_token(history, slot.seed, slot.choice, allowed.get((row, position), range(VOCABULARY)))
                sampled.append(token)
                history.append(token)
                if drafts[position : position + 1] != [token]:
                    break
            self.num_accepted += len(sampled) - 1
            self.num_rejected += len(drafts) - len(sampled) + 1
        flight.waiting = {}
        self._finish(flight)

    def _admit(self, plan: StepPlan) -> None:
        for admission in plan.admissions:
            history = admission.tokens.tolist()
            holders = {owner for before in self.in_flight for owner, _ in before.touched.values()}
            assert admission.slot not in holders, "a slot is given away while a plan in flight has a row of it"
            assert 0 <= admission.num_computed < len(history)
            self.slots[admission.slot] = Slot(
                admission.generation,
                admission.key,
                history,
                admission.num_prompt,
                admission.seed,
                admission.choice,
            )
            self._keys[admission.slot] = admission.key
            self.slots[admission.slot].num_encoder = admission.num_encoder
        for group, slot, column, page in plan.table.tolist():
            self.slots[slot].table[group, column] = page

    def _finish(self, flight: Flight) -> None:
        plan = flight.plan
        offsets, ids, draft_offsets, draft_ids = [0], [], [0], []
        for row, sampled in flight.sampled.items():
            slot = self.slots[int(plan.slots[row])]
            slot.tokens.extend(sampled)
            slot.drafts = self.drafter(slot) if self.drafter else []
            ids.extend(sampled)
            offsets.append(len(ids))
            draft_ids.extend(slot.drafts)
            draft_offsets.append(len(draft_ids))
        finished, failed = self._end_transfers()
        flight.result = StepResult(
            plan=plan.id,
            offsets=int32(offsets),
            ids=int32(ids),
            draft_offsets=int32(draft_offsets) if self.drafter else None,
            draft_ids=int32(draft_ids) if self.drafter else None,
            errors=tuple(flight.errors),
            vectors=np.array(flight.vectors, np.float32) if flight.vectors else None,
            finished=finished,
            failed=failed,
            acks=tuple(Ack(ticket=control.ticket) for control in plan.controls),
        )

    def collect(self, timeout: float | None = None) -> StepResult | None:
        assert self.in_flight[0].result is not None, "the oldest plan waits for masks"
        return self.in_flight.popleft().result

    def check(self) -> None:
        pass

    def _compute(
        self,
        slot: Slot,
        number: int,
        start: int,
        count: int,
        touched: dict[int, tuple[int, int]],
        *,
        accepted: int | None = None,
        history: list[int] | None = None,
    ) -> None:
        tokens = history or slot.tokens
        accepted = count if accepted is None else accepted
        owner = (number, slot.generation)
        for position in range(start, start + count):
            good = position < start + accepted
            content = prefix_hash(tokens[: position + 1]) if good else b"rubbish"
            for page, offset in self._places(slot, position):
                self._writable(page, owner)
                touched[page] = owner
                self.pages[page][offset] = content
            self.computed_positions += 1
        self._fold(slot, number, start, count, accepted, tokens, touched)
        self._see_encoder(slot, number, touched)
        for g, group in enumerate(self.geometry.groups):
            if group.is_state or group.is_encoder:
                continue
            first = 0 if group.window is None else max(0, start - group.window + 1)
            for position in range(first, start + accepted):
                expected = prefix_hash(tokens[: position + 1])
                for page, offset in self._places(slot, position, g):
                    touched.setdefault(page, owner)
                    assert self.pages[page].get(offset) == expected, f"slot {number} lost position {position}"

    def _take_span(self, span: Int32Array | None) -> None:
        if span is not None:
            length, *members = span.tolist()
            assert bool(length) == (len(members) > 1)
            self._span = length, members, dict(self.slots[members[0]].table) if members else {}

    def _see_span(self, number: int) -> None:
        """Where the span lies there must be what the slot's own tokens are."""
        length, members, table = self._span
        if number not in members:
            return
        self.num_shared += 1
        tokens = self.slots[number].tokens
        assert length < len(tokens), "the newest token is in the span"
        for g, group in enumerate(self.geometry.groups):
            if group.is_state or group.is_encoder or group.window is not None:
                continue
            assert length % group.block == 0
            for position in range(length):
                for j in range(group.pages_per_block):
                    page = table[g, position // group.block * group.pages_per_block + j]
                    assert self.pages[page].get(position % group.block) == prefix_hash(tokens[: position + 1])

    def _encode(self, admissions: tuple[Admission, ...], touched: dict[int, tuple[int, int]]) -> None:
        """Write the encoder's output; who forks from another finds it there."""
        groups = [g for g, group in enumerate(self.geometry.groups) if group.is_encoder]
        for admission in admissions:
            slot, tokens = self.slots[admission.slot], admission.encoder_tokens.tolist()
            owner = (admission.slot, slot.generation)
            assert len(tokens) in (0, admission.num_encoder)
            self.encoded_tokens += len(tokens)
            for position, g in itertools.product(range(len(tokens)), groups):
                for page, offset in self._places(slot, position, g):
                    self._writable(page, owner)
                    touched[page] = owner
                    self.pages[page][offset] = prefix_hash(tokens[: position + 1], f"encoder {admission.key}")

    def _see_encoder(self, slot: Slot, number: int, touched: dict[int, tuple[int, int]]) -> None:
        """Every token of the input must be there, though others may look at it too."""
        for g, group in enumerate(self.geometry.groups):
            tokens = encoder_input(self._keys[number], slot.num_encoder) if group.is_encoder else []
            for position in range(len(tokens)):
                expected = prefix_hash(tokens[: position + 1], f"encoder {self._keys[number]}")
                for page, offset in self._places(slot, position, g):
                    touched.setdefault(page, (-2, self._keys[number]))
                    assert self.pages[page].get(offset) == expected, f"slot {number} lost its encoder's output"

    def _copy_after(self, plan: StepPlan, touched: dict[int, tuple[int, int]]) -> None:
        for _, source, _, target in plan.copies_after.tolist():
            self._writable(target, None)
            assert target not in touched, "a copy lands on what this very plan computes"
            self.pages[target] = dict(self.pages[source])
            touched.setdefault(source, (-1, -1))
            touched[target] = (-1, -1)

    def _fold(
        self,
        slot: Slot,
        number: int,
        start: int,
        count: int,
        accepted: int,
        tokens: list[int],
        touched: dict[int, tuple[int, int]],
    ) -> None:
        """Take the state after `start` tokens, fold the row's in, and leave the states that the next row may start from."""
        owner = (number, slot.generation)
        for g, group in enumerate(self.geometry.groups):
            if not group.is_state:
                continue
            pages = lambda length: self._state_pages(slot, g, length)  # noqa: B023, E731
            for page in pages(start) if start else ():
                touched[page] = owner
                assert self.pages[page].get(0) == prefix_hash(tokens[:start]), (
                    f"slot {number} lost its state of {start}"
                )
            # A row of drafts keeps the state after each; any other only the last.
            first = start + 1 if group.live > 1 and count <= self.tokens_per_step else start + count
            for length in range(first, start + count + 1):
                for page in pages(length):
                    self._writable(page, owner)
                    touched[page] = owner
                    good = length <= start + accepted
                    self.pages[page] = {0: prefix_hash(tokens[:length]) if good else b"rubbish"}

    def _state_pages(self, slot: Slot, g: int, length: int) -> list[int]:
        """The pages of the live state after `length` tokens."""
        group = self.geometry.groups[g]
        first = length % group.live * group.pages_per_block
        return [slot.table[g, column] for column in range(first, first + group.pages_per_block)]

    def _places(self, slot: Slot, position: int, only: int | None = None) -> list[tuple[int, int]]:
        places = []
        for g, group in enumerate(self.geometry.groups):
            if only == g or (only is None and not (group.is_state or group.is_encoder)):
                index, offset = divmod(position, group.block)
                columns = range(index * group.pages_per_block, (index + 1) * group.pages_per_block)
                places.extend((slot.table[g, column], offset) for column in columns)
        return places

    def _writable(self, page: int, owner: tuple[int, int] | None) -> None:
        for flight in self.in_flight:
            assert flight.touched.get(page, owner) == owner, f"page {page} is written while a plan in flight touches it"

    def _begin_transfer(self, ticket: int, slot: Slot, pages: list[list[int]]) -> None:
        contents = []
        for g, column, page in pages:
            group = self.geometry.groups[g]
            first = column // group.pages_per_block * group.block
            places = {i: prefix_hash(slot.tokens[: first + i + 1]) for i in range(group.block)}
            contents.append((page, places))
        self.transfers.append((ticket, contents))

    def _end_transfers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        finished, failed, left = [], [], []
        for ticket, contents in self.transfers:
            fate = self.chance.integers(0, 4)
            if fate < 2:
                left.append((ticket, contents))
                continue
            for page, places in contents:
                self.pages[page] = dict(places) if fate == 2 else {}
            (finished if fate == 2 else failed).append(ticket)
        self.transfers = left
        return tuple(finished), tuple(failed)
