"""A worker that computes nothing and checks everything.

Every page remembers which prefix each of its token places holds. A row that computes a position must find, through its page
table, exactly its own history in every place it may look at; a page may not be written while a plan in flight of somebody
else still touches it. Tokens follow from the history alone, so what a sequence must answer is known beforehand.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.arrays import int32
from octavo.protocol.control import Ack
from octavo.protocol.step import FROM_DEVICE, RowError, StepPlan, StepResult

VOCABULARY = 40


def prefix_hash(tokens: list[int], salt: str = "") -> bytes:
    """Return what a place holds that was computed after `tokens`."""
    return hashlib.blake2b(np.array(tokens, np.int32).tobytes() + salt.encode(), digest_size=8).digest()


def next_token(tokens: list[int], seed: int, choice: int) -> int:
    """Return the token that follows a history."""
    return hashlib.blake2b(f"{tokens} {seed} {choice}".encode(), digest_size=4).digest()[0] % VOCABULARY


@dataclass
class Slot:
    generation: int
    tokens: list[int]
    seed: int
    choice: int
    table: dict[tuple[int, int], int] = field(default_factory=dict)


class FakeExecutor:
    """Fulfils the executor protocol. `chance` decides how many of 1..k tokens a row yields and how transfers end."""

    def __init__(
        self, geometry: Geometry, num_pages: int, *, tokens_per_step: int = 1, budget: int = 2**31, seed: int = 0
    ) -> None:
        self.geometry = geometry
        self.tokens_per_step = tokens_per_step
        self.budget = budget
        self.chance = np.random.default_rng(seed)
        self.pages: list[dict[int, bytes]] = [{} for _ in range(num_pages)]
        self.slots: dict[int, Slot] = {}
        self.in_flight: deque[tuple[StepResult, dict[int, tuple[int, int]]]] = deque()
        self.transfers: list[tuple[int, list[tuple[int, dict[int, bytes]]]]] = []
        self.computed_positions = 0
        self.failing_keys: set[int] = set()
        self._keys: dict[int, int] = {}

    def load(self) -> WorkerReport:
        return WorkerReport(layers=(), free_bytes=0)

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def submit(self, plan: StepPlan) -> None:
        touched: dict[int, tuple[int, int]] = {}
        for admission in plan.admissions:
            history = admission.tokens.tolist()
            assert 0 <= admission.num_computed < len(history)
            self.slots[admission.slot] = Slot(admission.generation, history, admission.seed, admission.choice)
            self._keys[admission.slot] = admission.key
        for group, slot, column, page in plan.table.tolist():
            self.slots[slot].table[group, column] = page
        for _, source, _, target in plan.copies_before.tolist():
            self._writable(target, None)
            self.pages[target] = dict(self.pages[source])
        for transfer in plan.transfers:
            self._begin_transfer(transfer.ticket, self.slots[transfer.slot], transfer.pages.tolist())
        offsets, ids, errors = [0], [], []
        assert len(set(plan.slots.tolist())) == len(plan.slots), "a slot has two rows"
        assert plan.counts.sum() <= self.budget, "a plan computes more than its budget"
        for row, (slot_number, start, count, samples) in enumerate(
            zip(plan.slots.tolist(), plan.starts.tolist(), plan.counts.tolist(), plan.samples.tolist(), strict=True)
        ):
            assert count > 0
            slot = self.slots[slot_number]
            sampled: list[int] = []
            if start != FROM_DEVICE:
                assert start + count <= len(slot.tokens)
                self._compute(slot, slot_number, start, count, touched)
                if samples:
                    assert start + count == len(slot.tokens)
                    sampled = [next_token(slot.tokens, slot.seed, slot.choice)]
            else:
                assert samples
                assert count <= self.tokens_per_step
                number = int(self.chance.integers(0 if self.tokens_per_step > 1 else 1, count + 1))
                begin = len(slot.tokens) - 1
                history = list(slot.tokens)
                for _ in range(number):
                    history.append(next_token(history, slot.seed, slot.choice))
                sampled = history[len(slot.tokens) :]
                # Drafts past the accepted ones leave rubbish in places that were granted.
                self._compute(slot, slot_number, begin, count, touched, accepted=max(number, 1), history=history)
            if samples:
                if self._keys[slot_number] in self.failing_keys:
                    errors.append(RowError(row=row, message="NaN logits"))
                    sampled = []
                slot.tokens.extend(sampled)
                ids.extend(sampled)
                offsets.append(len(ids))
        finished, failed = self._end_transfers()
        acks = tuple(Ack(ticket=control.ticket) for control in plan.controls)
        result = StepResult(
            plan=plan.id,
            offsets=int32(offsets),
            ids=int32(ids),
            errors=tuple(errors),
            finished=finished,
            failed=failed,
            acks=acks,
        )
        self.in_flight.append((result, touched))

    def collect(self, timeout: float | None = None) -> StepResult | None:
        return self.in_flight.popleft()[0]

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
        for g, group in enumerate(self.geometry.groups):
            first = 0 if group.kept.window is None else max(0, start - group.kept.window + 1)
            for position in range(first, start + accepted):
                expected = prefix_hash(tokens[: position + 1])
                for page, offset in self._places(slot, position, g):
                    touched.setdefault(page, owner)
                    assert self.pages[page].get(offset) == expected, f"slot {number} lost position {position}"

    def _places(self, slot: Slot, position: int, only: int | None = None) -> list[tuple[int, int]]:
        places = []
        for g, group in enumerate(self.geometry.groups):
            if only in (None, g):
                index, offset = divmod(position, group.block)
                columns = range(index * group.pages_per_block, (index + 1) * group.pages_per_block)
                places.extend((slot.table[g, column], offset) for column in columns)
        return places

    def _writable(self, page: int, owner: tuple[int, int] | None) -> None:
        for _, touched in self.in_flight:
            assert touched.get(page, owner) == owner, f"page {page} is written while a plan in flight touches it"

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
