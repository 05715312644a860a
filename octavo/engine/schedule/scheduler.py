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
from octavo.constrain.matcher import Grammars, Matcher
from octavo.engine.kvcache.allocator import Holding
from octavo.engine.kvcache.geometry import Geometry
from octavo.engine.schedule.admission import Admitter
from octavo.engine.schedule.commit import Ended, commit_rows
from octavo.engine.schedule.controls import PendingControls
from octavo.engine.schedule.limits import ScheduleLimits, refusal
from octavo.engine.schedule.rows import Rows
from octavo.engine.schedule.sequence import Sequence
from octavo.engine.schedule.spans import Spans
from octavo.engine.schedule.state import ScheduleState
from octavo.engine.schedule.transfers import NoSource, PrefixSource
from octavo.protocol.arrays import Int32Array, int32, rows32
from octavo.protocol.control import Control, ResetPrefixCache
from octavo.protocol.output import EngineStats, Finish, TokenDelta
from octavo.protocol.request import FinishChoice, Request
from octavo.protocol.step import FROM_DEVICE, Masks, StepPlan, StepResult

_NO_ROWS = int32()


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A submitted plan: its rows and the generations its slots had."""

    plan: StepPlan
    generations: Int32Array


class Scheduler:
    """Decides what each plan computes. Knows no tensor, and no clock but the one it is given. state: all sequences."""

    def __init__(
        self,
        geometry: Geometry,
        num_pages: int,
        limits: ScheduleLimits,
        *,
        source: PrefixSource | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = ScheduleState(geometry, num_pages, limits)
        self._controls = PendingControls()
        self._spans = Spans(geometry, limits)
        self._arrivals = 0
        self._in_flight: deque[_InFlight] = deque()
        self._last_masks = -1
        self._admitter = Admitter(self.state, source or NoSource(), clock)

    # What comes in.

    def add(self, request: Request, grammar: Matcher | None = None) -> None:
        """Take a request, with what its grammar was compiled to; one that can never fit is answered with an error at once."""
        state = self.state
        problem = refusal(request, state.limits, state.allocator.geometry, state.allocator.pool.num_pages)
        if problem is not None:
            self.refuse(request, problem)
            return
        self._arrivals += 1
        priority = request.priority if state.limits.policy == "priority" else 0
        choices = [
            Sequence(request, choice, (priority, self._arrivals, choice), request.tokens)
            for choice in range(request.sampling.n)
        ]
        if grammar is not None:
            for choice in choices:
                choice.matcher = grammar.start()
        state.add(choices)

    def refuse(self, request: Request, problem: str) -> None:
        """Answer a request with an error."""
        for choice in range(request.sampling.n):
            finish = Finish(key=request.key, choice=choice, num_tokens=0, reason="error", message=problem)
            self.state.tally.finishes.append(finish)

    def abort(self, key: int) -> None:
        """Drop every choice of a request; unknown keys are ignored, they may have finished meanwhile."""
        for sequence in list(self.state.choices.get(key, ())):
            self.state.end(sequence, "abort")

    def finish_choice(self, message: FinishChoice) -> None:
        """The frontend has ended a choice: it gives back what it holds, nothing is said about it any more."""
        for sequence in list(self.state.choices.get(message.key, ())):
            if sequence.choice == message.choice:
                self.state.end(sequence, None)

    def control(self, message: Control) -> None:
        """Queue a control message for its plan."""
        self._controls.add(message)

    # State.

    @property
    def num_in_flight(self) -> int:
        """Plans made and not committed."""
        return self.state.num_in_flight

    @property
    def busy(self) -> bool:
        """Whether anything is left to plan, to commit or to say."""
        state = self.state
        waits = state.choices or state.num_in_flight or self._controls or self._admitter.loading
        return bool(waits or state.tally.has_news)

    def stats(self) -> EngineStats:
        """Return gauges and totals."""
        return self.state.stats()

    # What goes out.

    def plan(self, lockstep: int | None = None) -> StepPlan | None:
        """Return the next plan, or None if there is nothing to do.

        lockstep: the token bucket that all ranks agreed on; then a plan is always made, a dummy if there is nothing to do.
        """
        state = self.state
        state.reclaim()
        number = state.last_plan + 1
        drained = not (state.running or state.num_in_flight or self._admitter.loading)
        controls = self._controls.due(number, drained=drained, idle=drained and not state.choices)
        if any(isinstance(control.command, ResetPrefixCache) for control in controls):
            state.allocator.pool.forget_all()
        rows = Rows(state.limits)
        if state.running:
            self._plan_running(rows)
        admissions, transfers = (), ()
        if not (self._controls.draining or rows.short):
            admissions, transfers = self._admitter.admit(rows)
        nothing = not (rows.num_rows or controls or admissions)
        if nothing and lockstep is None and not (self._admitter.loading and not state.num_in_flight):
            return None
        slots, starts, counts, samples = rows.arrays()
        if state.allocator.has_states:
            self._plan_states(slots, starts, counts)
        writes, copies, copies_after = state.allocator.take_table()
        table = rows32(writes, 4)  # pyright: ignore[reportArgumentType]
        if writes:
            self._spans.tables.append(table)
        plan = StepPlan(
            id=number,
            slots=slots,
            starts=starts,
            counts=counts,
            samples=samples,
            pools=np.flatnonzero(state.slots.pools[slots]).astype(np.int32),
            scores=state.slots.scoring(slots, starts) if state.slots.num_scores else _NO_ROWS,
            masked=np.flatnonzero(samples & state.slots.constrained[slots]).astype(np.int32)
            if state.slots.num_constrained
            else _NO_ROWS,
            admissions=admissions,
            releases=int32(state.slots.released),
            table=table,
            span=None if state.changes == self._spans.changes else self._spans.update(state),
            copies_before=rows32(copies, 4),  # pyright: ignore[reportArgumentType]
            copies_after=rows32(copies_after, 4),  # pyright: ignore[reportArgumentType]
            transfers=transfers,
            controls=controls,
            shape=lockstep or 0,
            dummy=nothing and lockstep is not None,
        )
        state.slots.planned(number, slots, counts)
        state.last_plan = number
        self._in_flight.append(_InFlight(plan, state.slots.generation[slots]))
        return plan

    def _plan_running(self, rows: Rows) -> None:
        table, limits = self.state.slots, self.state.limits
        slots = self.state.current_slots()
        ready = (table.in_flight[slots] < limits.plans_per_sequence) & ~table.loading[slots]
        planned = table.computed[slots] + table.ahead[slots]
        # All but the newest token is computed or granted: a row that goes on from what the device knows.
        decodes = planned >= table.length[slots] - 1
        chosen = slots[ready & decodes & (planned < table.limit[slots] - 1)]
        room = min(max(1, rows.budget // limits.tokens_per_step), ceil_div(len(slots), limits.stages))
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
        table = self.state.slots
        sequence = table.sequences[slot]
        if sequence is None:
            return  # Preempted for one before it.
        end = int(table.computed[slot] + table.ahead[slot]) + self.state.limits.tokens_per_step
        if self._grow(sequence, min(end, int(table.limit[slot]) - 1), rows):
            self.state.reserve(sequence, 0)
        else:
            rows.drop(slot)

    def _plan_chunk(self, rows: Rows, slot: int) -> None:
        table = self.state.slots
        sequence = table.sequences[slot]
        if sequence is None:
            return
        start, length = int(table.computed[slot] + table.ahead[slot]), int(table.length[slot])
        assert sequence.holding is not None
        count = self.state.allocator.fitting(sequence.holding, start, min(rows.budget, length - start)) or 1
        if self._grow(sequence, start + count, rows):
            last = start + count == length
            self.state.reserve(sequence, 0 if last else length)
            rows.chunk(slot, start, count, last)

    def _plan_states(self, slots: Int32Array, starts: Int32Array, counts: Int32Array) -> None:
        """Restore the states of rows that resume, and checkpoint those of rows that end where it is due.

        Last of all, when it is settled who has a row. Where a row of several drafts ends nobody knows yet.
        """
        state, allocator = self.state, self.state.allocator
        for slot in slots[starts >= 0].tolist():
            allocator.restore(self._holding(slot), state.last_plan + 1)
        if allocator.interval:
            ends = state.slots.computed[slots] + state.slots.ahead[slots] + counts
            due = (ends % allocator.interval == 0) & ((starts >= 0) | (state.limits.tokens_per_step == 1))
            for slot, end in zip(slots[due].tolist(), ends[due].tolist(), strict=True):
                spare = allocator.pool.available_pages - state.reserved_pages
                allocator.checkpoint(self._holding(slot), end, spare)

    def _holding(self, slot: int) -> Holding:
        holding = self.state.sequence_of(slot).holding
        assert holding is not None
        return holding

    def _grow(self, sequence: Sequence, num_tokens: int, rows: Rows) -> bool:
        """Make room for `num_tokens` tokens, preempting whoever comes last in the queue; False if it must wait."""
        state, allocator = self.state, self.state.allocator
        assert sequence.holding is not None
        while not allocator.grow(sequence.holding, sequence.slot, num_tokens):
            rows.short = True
            if allocator.pool.pending_pages:
                return False  # Pages come back when plans in flight are done.
            victim = max(state.running, key=lambda running: running.order)
            if len(state.running) == 1:
                if not (state.num_in_flight or self._admitter.loading):
                    message = f"{num_tokens} tokens do not fit a pool of {allocator.pool.num_pages} pages"
                    state.end(sequence, "error", message=message)
                return False
            rows.drop(victim.slot)
            state.preempt(victim)
            if victim is sequence:
                return False
        state.note_capacity(sequence)
        return True

    def commit(self, result: StepResult) -> TokenDelta | None:
        """Take a plan's result; results come in the order of plans. Returns what is new for clients, None if nothing."""
        state, flight = self.state, self._in_flight.popleft()
        plan = flight.plan
        assert result.plan == plan.id, f"result of plan {result.plan}, expected {plan.id}"
        state.done_plan = plan.id
        self._admitter.transfers_ended(result)
        ended = commit_rows(state.slots, plan, flight.generations, result, state.tally, self._follow)
        for slot in state.slots.due(plan.slots, flight.generations):
            state.note_computed(slot)
        for slot, reason, stop_id, message in ended:
            state.end(state.sequence_of(slot), reason, stop_id=stop_id, message=message)
        state.tally.acks.extend(result.acks)
        state.reclaim()
        # Pages and slots that waited for the last plan are back: gauges must not stay at what they were before.
        state.tally.changed |= not state.num_in_flight
        return self.news()

    def _follow(self, slot: int, place: int, result: StepResult, kept: Int32Array, ended: list[Ended]) -> None:
        """Lead a slot's grammar on; where it has come to its end, so has the answer: what came behind it counts for nothing.

        place: of its row among those that sample. kept: how many tokens each of them gave.
        """
        table, matcher = self.state.slots, self.state.sequence_of(slot).matcher
        assert matcher is not None
        if result.draft_offsets is not None and result.draft_ids is not None:
            matcher.drafts = result.draft_ids[slice(*result.draft_offsets[place : place + 2])].tolist()
        over, seen, first = any(slot == other for other, *_ in ended), matcher.num_seen, int(table.num_prompt[slot])
        # What ends the answer anyway is no part of its form.
        problem = matcher.accept(table.tokens[slot, first + seen : int(table.length[slot]) - over].tolist())
        if matcher.ended and not (over and matcher.num_seen == seen):
            num_behind = int(table.length[slot]) - first - matcher.num_seen
            table.length[slot] -= num_behind
            kept[place] -= num_behind
            ended[:] = [one for one in ended if one[0] != slot]
            ended.append((slot, "error" if problem else "stop", None, problem))

    def masks(self, grammars: Grammars) -> Masks | None:
        """Return what the oldest plan in flight waits for, once; None if that is nothing."""
        flight = self._in_flight[0] if self._in_flight else None
        if flight is None or not len(flight.plan.masked) or flight.plan.id <= self._last_masks:
            return None
        plan, state = flight.plan, self.state
        self._last_masks = plan.id
        live = plan.masked[state.slots.generation[plan.slots[plan.masked]] == flight.generations[plan.masked]]
        asked = [state.sequence_of(slot) for slot in plan.slots[live].tolist()]
        # A row that computes its history again has no drafts, and no row has more than it was granted.
        granted = np.where(plan.starts[live] == FROM_DEVICE, plan.counts[live] - 1, 0).tolist()
        rows = zip(asked, granted, strict=True)
        masks = [(one.matcher, one.request.stop_ids, one.matcher.drafts[:most]) for one, most in rows if one.matcher]
        owners, numbers, bits = grammars.masks(masks)
        return Masks(plan=plan.id, rows=live[owners], positions=numbers, bits=bits)

    def news(self) -> TokenDelta | None:
        """Return what is new for clients since the last call, None if nothing is."""
        return self.state.tally.take(self.stats) if self.state.tally.has_news else None
