"""The sequences of one engine and what they hold: the steps from waiting to running and back, and to the end.

The scheduler and admission decide who takes which step; here slots, pages, reservations and queues are kept in order. What is
given back is used again when every plan that may still touch it is done.
"""

from __future__ import annotations

from octavo.engine.kvcache.allocator import Allocator, Holding
from octavo.engine.kvcache.geometry import Geometry
from octavo.engine.schedule.commit import Tally
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.queue import WaitingQueue
from octavo.engine.schedule.sequence import Sequence
from octavo.engine.schedule.slots import SlotTable
from octavo.protocol.arrays import Int32Array, int32
from octavo.protocol.output import EngineStats, Finish, FinishReason


class ScheduleState:
    """All sequences, by request and by where they are.

    reserved_pages: what the rest of running prefills will take. last_plan: number of the newest plan made. done_plan: of the
    newest whose result is there; those between are in flight. changes: how often others were running than before.
    """

    def __init__(self, geometry: Geometry, num_pages: int, limits: ScheduleLimits) -> None:
        self.limits = limits
        self.slots = SlotTable(limits)
        self.allocator = Allocator(geometry, num_pages, identity=limits.identity, reuse=limits.enable_prefix_caching)
        self.waiting = WaitingQueue()
        self.tally = Tally()
        self.running: list[Sequence] = []
        self.choices: dict[int, list[Sequence]] = {}
        self.reserved_pages = 0
        self.last_plan = -1
        self.done_plan = -1
        self._num_choices = 0
        self._running_slots: Int32Array = int32()
        self.changes = 0
        self._changes = 0

    @property
    def num_in_flight(self) -> int:
        """Plans made whose results are not there."""
        return self.last_plan - self.done_plan

    def stats(self) -> EngineStats:
        """Return gauges and totals."""
        pool, num_running, tally = self.allocator.pool, len(self.running), self.tally
        size, next_one = self.limits.max_num_seqs, self.waiting.first()
        return EngineStats(
            num_running=num_running,
            num_waiting=self._num_choices - num_running,
            num_waiting_tokens=self.waiting.num_tokens,
            waits_since=0.0 if next_one is None else next_one.request.arrival,
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
            num_steps=self.last_plan + 1,
            failed_rows=tally.failed_rows,
        )

    def current_slots(self) -> Int32Array:
        """Return the slots of running sequences in queue order."""
        if self.changes != self._changes:
            self.running.sort(key=lambda sequence: sequence.order)
            self._running_slots = int32([sequence.slot for sequence in self.running])
            self._changes = self.changes
        return self._running_slots

    def sequence_of(self, slot: int) -> Sequence:
        """Return the sequence that holds a slot."""
        sequence = self.slots.sequences[slot]
        assert sequence is not None
        return sequence

    # Coming and going.

    def add(self, choices: list[Sequence]) -> None:
        """Let a request's choices wait: the first in the queue, the others for it, from which they fork."""
        first, *others = choices
        self.choices[first.request.key] = choices
        self._num_choices += len(choices)
        first.children = others
        for child in others:
            child.parent = first
        self.waiting.push(first)

    def start(self, sequence: Sequence, holding: Holding, num_computed: int) -> int:
        """Give a waiting sequence the next free slot, and count it as running; returns the slot."""
        slot = self.slots.acquire(sequence, num_computed)
        sequence.holding = holding
        self.note_capacity(sequence)
        self.running.append(sequence)
        self.changes += 1
        self._set_event(sequence)
        return slot

    def preempt(self, sequence: Sequence) -> None:
        """Take slot and pages from a running sequence; it will compute its history again."""
        self.tally.num_preemptions += 1
        sequence.tokens = self.slots.tokens[sequence.slot, : self.slots.length[sequence.slot]].copy()
        self._give_back(sequence)
        self.waiting.push(sequence)
        # Without plans in flight its pages may serve this very plan. Its slot may not: rows already gathered may name it.
        self.allocator.pool.plan_done(self.done_plan)

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
        sequence.ended = True  # Whoever has it in a queue drops it there.
        self.waiting.left(sequence)
        self._free_children(sequence)
        choices = self.choices[key]
        choices.remove(sequence)
        self._num_choices -= 1
        if not choices:
            del self.choices[key]
        if reason is not None:
            counted = num_tokens - sequence.num_prompt
            self.tally.finishes.append(
                Finish(
                    key=key, choice=sequence.choice, num_tokens=counted, reason=reason, stop_id=stop_id, message=message
                )
            )
        else:
            self.tally.changed = True
        self.reclaim()

    def reclaim(self) -> None:
        """Let pages and slots be used again that waited for plans now done."""
        self.allocator.pool.plan_done(self.done_plan)
        self.slots.plan_done(self.done_plan)

    # What running sequences hold.

    def note_capacity(self, sequence: Sequence) -> None:
        """Note how many tokens the blocks that a sequence holds can take."""
        assert sequence.holding is not None
        self.slots.capacity[sequence.slot] = sequence.holding.capacity(self.allocator.geometry)

    def note_computed(self, slot: int) -> None:
        """Tell the cache of a sequence that filled a block or left one behind; let its choices fork."""
        sequence, computed = self.sequence_of(slot), int(self.slots.computed[slot])
        assert sequence.holding is not None
        self.allocator.computed(sequence.holding, self.slots.tokens[slot], computed, self.last_plan)
        if sequence.children and computed >= sequence.num_prompt - 1:
            self._free_children(sequence)
        self._set_event(sequence)

    def reserve(self, sequence: Sequence, num_tokens: int) -> None:
        """Reserve the pages that a sequence still takes to hold `num_tokens` tokens; 0 gives its reservation up."""
        assert sequence.holding is not None
        pages = self.allocator.pages_to_grow(sequence.holding, num_tokens) if num_tokens else 0
        self.reserved_pages += pages - sequence.reserved
        sequence.reserved = pages

    def _set_event(self, sequence: Sequence) -> None:
        """Note at which number of computed tokens somebody must look at the sequence again."""
        assert sequence.holding is not None
        event = self.allocator.next_event(sequence.holding)
        if sequence.children:
            event = min(event, sequence.num_prompt - 1)
        self.slots.event[sequence.slot] = event

    def _free_children(self, sequence: Sequence) -> None:
        """Let the choices that waited for this sequence's prompt queue for slots of their own."""
        for child in sequence.children:
            self.waiting.push(child)
        sequence.children = []

    def _give_back(self, sequence: Sequence) -> None:
        assert sequence.holding is not None
        self.reserve(sequence, 0)
        self.allocator.release(sequence.holding, self.last_plan)
        self.slots.release(sequence.slot, self.last_plan)
        sequence.holding = None
        self.running.remove(sequence)
        self.changes += 1
