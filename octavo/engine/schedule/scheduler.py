"""The scheduler: `plan()` says what the next step computes, `commit()` takes what it gave.

One token budget covers decodes and prefill chunks. Decodes go first, then running prefills, then new sequences, all in
queue order. Plans are made ahead of results: what a sequence may compute next follows from counts alone, its newest token
stays on the device. Finishes and aborts are corrected one plan late, by generation.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.base.intmath import ceil_div
from octavo.engine.kvcache.allocator import Allocator, Holding
from octavo.engine.kvcache.geometry import Geometry
from octavo.engine.schedule.admission import Admitter
from octavo.engine.schedule.commit import Tally, commit_rows
from octavo.engine.schedule.controls import PendingControls
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.queue import WaitingQueue
from octavo.engine.schedule.refusal import refusal
from octavo.engine.schedule.rows import Rows
from octavo.engine.schedule.sequence import Sequence
from octavo.engine.schedule.slots import SlotTable
from octavo.engine.schedule.transfers import NoSource, PrefixSource
from octavo.protocol.arrays import BoolArray, Int32Array, int32, rows32
from octavo.protocol.control import Control, ResetPrefixCache
from octavo.protocol.output import EngineStats, FinishReason, TokenDelta
from octavo.protocol.request import FinishChoice, Request
from octavo.protocol.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A submitted plan: its rows and the generations its slots had."""

    plan: StepPlan
    generations: Int32Array


class Scheduler:
    """All sequences of one engine. Knows no tensor, and no clock but the one it is given."""

    def __init__(
        self,
        geometry: Geometry,
        num_pages: int,
        limits: ScheduleLimits,
        *,
        source: PrefixSource | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits
        self.slots = SlotTable(limits)
        self.allocator = Allocator(geometry, num_pages, identity=limits.identity, reuse=limits.enable_prefix_caching)
        self.waiting = WaitingQueue()
        self.controls = PendingControls()
        self.tally = Tally()
        self.running: list[Sequence] = []
        self._running_slots: Int32Array = int32()
        self._changed = False
        self.reserved_pages = 0
        self._choices: dict[int, list[Sequence]] = {}
        self._num_choices = 0
        self._arrivals = 0
        self._next_plan = 0
        self._done_plan = -1
        self._in_flight: deque[_InFlight] = deque()
        self._admitter = Admitter(self, source or NoSource(), clock)

    # What comes in.

    def add(self, request: Request) -> None:
        """Take a request; one that can never fit is answered with an error at once."""
        problem = refusal(request, self.limits, self.allocator.geometry, self.allocator.pool.num_pages)
        if problem is not None:
            for choice in range(request.sampling.n):
                self.tally.finish(request.key, choice, 0, "error", message=problem)
            return
        self._arrivals += 1
        priority = request.priority if self.limits.policy == "priority" else 0
        choices = [
            Sequence(request, choice, (priority, self._arrivals, choice), request.tokens)
            for choice in range(request.sampling.n)
        ]
        self._choices[request.key] = choices
        self._num_choices += len(choices)
        parent = choices[0]
        parent.children = choices[1:]
        for child in parent.children:
            child.parent = parent
        self.waiting.push(parent)

    def abort(self, key: int) -> None:
        """Drop every choice of a request; unknown keys are ignored, they may have finished meanwhile."""
        for sequence in list(self._choices.get(key, ())):
            self.end(sequence, "abort")

    def finish_choice(self, message: FinishChoice) -> None:
        """The frontend has ended a choice: it gives back what it holds, nothing is said about it any more."""
        for sequence in list(self._choices.get(message.key, ())):
            if sequence.choice == message.choice:
                self.end(sequence, None)

    def control(self, message: Control) -> None:
        """Queue a control message for its plan."""
        self.controls.add(message)

    # State.

    @property
    def last_plan(self) -> int:
        """Number of the newest plan made."""
        return self._next_plan - 1

    @property
    def num_in_flight(self) -> int:
        """Plans made and not committed."""
        return len(self._in_flight)

    @property
    def busy(self) -> bool:
        """Whether anything is left to plan, to commit or to say."""
        return bool(self._choices or self._in_flight or self.controls or self.tally.has_news or self._admitter.loading)

    def stats(self) -> EngineStats:
        """Return gauges and totals."""
        pool, num_running, tally = self.allocator.pool, len(self.running), self.tally
        size = self.limits.max_num_seqs
        return EngineStats(
            num_running=num_running,
            num_waiting=self._num_choices - num_running,
            num_slots=size,
            used_slots=size - self.slots.num_free,
            num_pages=pool.num_pages,
            free_pages=pool.free_pages,
            cached_pages=pool.cached_pages,
            used_pages=pool.used_pages,
            pending_pages=pool.pending_pages,
            prefix_queries=tally.prefix_queries,
            prefix_hits=tally.prefix_hits,
            num_preemptions=tally.num_preemptions,
            prompt_tokens=tally.prompt_tokens,
            generated_tokens=tally.generated_tokens,
            num_steps=self._next_plan,
            failed_rows=tally.failed_rows,
        )

    # What goes out.

    def plan(self, lockstep: int | None = None) -> StepPlan | None:
        """Return the next plan, or None if there is nothing to do.

        lockstep: the token bucket that all ranks agreed on; then a plan is always made, a dummy if there is nothing to do.
        """
        self._reclaim()
        number = self._next_plan
        drained = not (self.running or self._in_flight or self._admitter.loading)
        controls = self.controls.due(number, drained=drained, idle=drained and not self._choices)
        if any(isinstance(control.command, ResetPrefixCache) for control in controls):
            self.allocator.pool.forget_all()
        rows = Rows(self.limits)
        if self.running:
            self._plan_running(rows)
        admissions, transfers = (), ()
        if not (self.controls.draining or rows.short):
            admissions, transfers = self._admitter.admit(rows)
        nothing = not (rows.num_rows or controls or admissions)
        if nothing and lockstep is None and not (self._admitter.loading and not self._in_flight):
            return None
        slots, starts, counts, samples = rows.arrays()
        if self.allocator.has_states:
            self._plan_states(slots, starts, counts)
        table, copies, copies_after = self.allocator.take_table()
        plan = StepPlan(
            id=number,
            slots=slots,
            starts=starts,
            counts=counts,
            samples=samples,
            pools=np.flatnonzero(self.slots.pools[slots]).astype(np.int32),
            scores=np.flatnonzero(self.slots.scores[slots] & (starts >= 0)).astype(np.int32),
            admissions=admissions,
            releases=int32(self.slots.released),
            table=rows32(table, 4),  # pyright: ignore[reportArgumentType]
            copies_before=rows32(copies, 4),  # pyright: ignore[reportArgumentType]
            copies_after=rows32(copies_after, 4),  # pyright: ignore[reportArgumentType]
            transfers=transfers,
            controls=controls,
            shape=lockstep or 0,
            dummy=nothing and lockstep is not None,
        )
        self.slots.released = []
        self._next_plan += 1
        self.slots.ahead[slots] += counts
        self.slots.in_flight[slots] += 1
        self.slots.last_plan[slots] = number
        self._in_flight.append(_InFlight(plan, self.slots.generation[slots]))
        return plan

    def _plan_running(self, rows: Rows) -> None:
        table = self.slots
        slots = self._current_slots()
        ready = (table.in_flight[slots] < self.limits.plans_per_sequence) & ~table.loading[slots]
        planned = table.computed[slots] + table.ahead[slots]
        # All but the newest token is computed or granted: a row that goes on from what the device knows.
        decodes = planned >= table.length[slots] - 1
        chosen = slots[ready & decodes & (planned < table.limit[slots] - 1)]
        room = min(max(1, rows.budget // self.limits.tokens_per_step), ceil_div(len(slots), self.limits.stages))
        if len(chosen) > room:
            longest_waiting = np.argsort(table.last_plan[chosen], kind="stable")[:room]
            chosen = chosen[np.sort(longest_waiting)]
        rows.decode(chosen, table)
        short = chosen[rows.decode_ends > table.capacity[chosen]]
        for slot in short.tolist():
            self._grow_decode(rows, slot)
        for slot in slots[ready & ~decodes].tolist():
            if rows.budget <= 0:
                break
            self._plan_chunk(rows, slot)

    def _grow_decode(self, rows: Rows, slot: int) -> None:
        sequence = self.slots.sequences[slot]
        if sequence is None:
            return  # Preempted for one before it.
        end = int(self.slots.computed[slot] + self.slots.ahead[slot]) + self.limits.tokens_per_step
        end = min(end, int(self.slots.limit[slot]) - 1)
        if self._grow(sequence, end, rows):
            self.unreserve(sequence, keep=False)
        else:
            rows.drop(slot)

    def _plan_chunk(self, rows: Rows, slot: int) -> None:
        sequence = self.slots.sequences[slot]
        if sequence is None:
            return
        start = int(self.slots.computed[slot] + self.slots.ahead[slot])
        length = int(self.slots.length[slot])
        assert sequence.holding is not None
        count = self.allocator.fitting(sequence.holding, start, min(rows.budget, length - start)) or 1
        if self._grow(sequence, start + count, rows):
            self.unreserve(sequence, keep=start + count < length)
            rows.chunk(slot, start, count, start + count == length)

    def _plan_states(self, slots: Int32Array, starts: Int32Array, counts: Int32Array) -> None:
        """Restore the states of rows that resume, and checkpoint those of rows that end where it is due.

        Last of all, when it is settled who has a row. Where a row of several drafts ends nobody knows yet.
        """
        allocator = self.allocator
        for slot in slots[starts >= 0].tolist():
            allocator.restore(self._holding(slot), self._next_plan)
        if allocator.interval:
            ends = self.slots.computed[slots] + self.slots.ahead[slots] + counts
            due = (ends % allocator.interval == 0) & ((starts >= 0) | (self.limits.tokens_per_step == 1))
            for slot, end in zip(slots[due].tolist(), ends[due].tolist(), strict=True):
                spare = allocator.pool.available_pages - self.reserved_pages
                allocator.checkpoint(self._holding(slot), end, spare)

    def _holding(self, slot: int) -> Holding:
        sequence = self.slots.sequences[slot]
        assert sequence is not None
        assert sequence.holding is not None
        return sequence.holding

    def _grow(self, sequence: Sequence, num_tokens: int, rows: Rows) -> bool:
        """Make room for `num_tokens` tokens, preempting whoever comes last in the queue; False if it must wait."""
        assert sequence.holding is not None
        slot = sequence.slot
        while not self.allocator.grow(sequence.holding, slot, num_tokens):
            rows.short = True
            if self.allocator.pool.pending_pages:
                return False  # Pages come back when plans in flight are done.
            victim = max(self.running, key=lambda running: running.order)
            if len(self.running) == 1:
                if not (self._in_flight or self._admitter.loading):
                    message = f"{num_tokens} tokens do not fit a pool of {self.allocator.pool.num_pages} pages"
                    self.end(sequence, "error", message=message)
                return False
            rows.drop(victim.slot)
            self.preempt(victim)
            if victim is sequence:
                return False
        self.slots.capacity[slot] = sequence.holding.capacity(self.allocator.geometry)
        return True

    def commit(self, result: StepResult) -> TokenDelta | None:
        """Take a plan's result; results come in the order of plans. Returns what is new for clients, None if nothing."""
        flight = self._in_flight.popleft()
        plan = flight.plan
        assert result.plan == plan.id, f"result of plan {result.plan}, expected {plan.id}"
        self._admitter.transfers_ended(result)
        ended = commit_rows(self.slots, plan, flight.generations, result, self.tally)
        self._note_rows(plan.slots, flight.generations)
        for slot, reason, stop_id, message in ended:
            sequence = self.slots.sequences[slot]
            assert sequence is not None
            self.end(sequence, reason, stop_id=stop_id, message=message)
        self.tally.acks.extend(result.acks)
        self._done_plan = plan.id
        self._reclaim()
        # Pages and slots that waited for the last plan are back: gauges must not stay at what they were before.
        self.tally.changed |= not self._in_flight
        return self.news()

    def news(self) -> TokenDelta | None:
        """Return what is new for clients since the last call, None if nothing is."""
        return self.tally.take(self.stats) if self.tally.has_news else None

    def _note_rows(self, slots: Int32Array, generations: Int32Array) -> None:
        table = self.slots
        due: BoolArray = (table.generation[slots] == generations) & (table.computed[slots] >= table.event[slots])
        for slot in slots[due].tolist():
            self.note_computed(slot)

    # Changes of state, also used by admission.

    def set_event(self, sequence: Sequence) -> None:
        """Note at which number of computed tokens somebody must look at the sequence again."""
        assert sequence.holding is not None
        event = self.allocator.next_event(sequence.holding)
        if sequence.children:
            event = min(event, sequence.num_prompt - 1)
        self.slots.event[sequence.slot] = event

    def note_computed(self, slot: int) -> None:
        """Tell the cache of a sequence that filled a block or left one behind; let its choices fork."""
        sequence, computed = self.slots.sequences[slot], int(self.slots.computed[slot])
        assert sequence is not None
        assert sequence.holding is not None
        self.allocator.computed(sequence.holding, self.slots.tokens[slot], computed, self.last_plan)
        if sequence.children and computed >= sequence.num_prompt - 1:
            self.free_children(sequence)
        self.set_event(sequence)

    def start(self, sequence: Sequence) -> None:
        """Count a sequence that has its slot as running."""
        self.running.append(sequence)
        self._changed = True

    def free_children(self, sequence: Sequence) -> None:
        """Let the choices that waited for this sequence's prompt queue for slots of their own."""
        for child in sequence.children:
            if not child.ended:
                self.waiting.push(child)
        sequence.children = []

    def preempt(self, sequence: Sequence) -> None:
        """Take slot and pages from a running sequence; it will compute its history again."""
        self.tally.num_preemptions += 1
        slot = sequence.slot
        sequence.tokens = self.slots.tokens[slot, : self.slots.length[slot]].copy()
        self._give_back(sequence)
        self.free_children(sequence)
        self.waiting.push(sequence)
        if not self._in_flight:
            # Its pages may serve this very plan. Its slot may not: rows already gathered may name it.
            self.allocator.pool.plan_done(self.last_plan)

    def end(
        self, sequence: Sequence, reason: FinishReason | None, *, stop_id: int | None = None, message: str = ""
    ) -> None:
        """End a choice, wherever it is. `reason` None: the frontend ended it and needs no word."""
        if sequence.ended:
            return
        slot, key = sequence.slot, sequence.request.key
        num_tokens = len(sequence.tokens) if slot < 0 else int(self.slots.length[slot])
        if slot >= 0:
            self._give_back(sequence)
            sequence.ended = True
        elif sequence.parent is not None and sequence in sequence.parent.children:
            sequence.ended = True  # It was not queued yet.
        else:
            self.waiting.end(sequence)
        self.free_children(sequence)
        choices = self._choices[key]
        choices.remove(sequence)
        self._num_choices -= 1
        if not choices:
            del self._choices[key]
        if reason is not None:
            counted = num_tokens - sequence.num_prompt
            self.tally.finish(key, sequence.choice, counted, reason, stop_id=stop_id, message=message)
        else:
            self.tally.changed = True
        self._reclaim()

    def unreserve(self, sequence: Sequence, *, keep: bool) -> None:
        """Reserve only what the rest of the prefill still takes; nothing if `keep` is False."""
        assert sequence.holding is not None
        rest = self.allocator.pages_to_grow(sequence.holding, int(self.slots.length[sequence.slot])) if keep else 0
        self.reserved_pages += rest - sequence.reserved
        sequence.reserved = rest

    def _give_back(self, sequence: Sequence) -> None:
        assert sequence.holding is not None
        self.unreserve(sequence, keep=False)
        self.allocator.release(sequence.holding, self.last_plan)
        self.slots.release(sequence.slot, self.last_plan)
        sequence.holding = None
        self.running.remove(sequence)
        self._changed = True

    def _reclaim(self) -> None:
        done = self._done_plan if self._in_flight else self.last_plan
        self.allocator.pool.plan_done(done)
        self.slots.plan_done(done)

    def _current_slots(self) -> Int32Array:
        if self._changed:
            self.running.sort(key=lambda sequence: sequence.order)
            self._running_slots = int32([sequence.slot for sequence in self.running])
            self._changed = False
        return self._running_slots
