"""Who may start: a slot, the longest cached prefix, a fork of another choice, or a prefix from elsewhere.

Queue order is kept: whoever is first and does not fit holds back everybody behind, so nobody starves.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.engine.kvcache.allocator import Holding
from octavo.engine.schedule.rows import Rows
from octavo.engine.schedule.sequence import Sequence
from octavo.engine.schedule.state import ScheduleState
from octavo.engine.schedule.transfers import Loading, Offer, PrefixSource
from octavo.protocol.arrays import int32
from octavo.protocol.output import Start
from octavo.protocol.step import Admission, StepResult, Transfer

# So many tokens more in the cache soon are worth waiting for.
_WORTH_WAITING = 1024


class Admitter:
    """Admits waiting sequences into a plan. loading: transfers under way, by ticket."""

    def __init__(self, state: ScheduleState, source: PrefixSource, clock: Callable[[], float]) -> None:
        self.loading: dict[int, Loading] = {}
        self._state = state
        self._source = source
        self._clock = clock
        self._next_ticket = 0
        # Who computes a long prompt.
        self._filling: list[Sequence] = []

    def admit(self, rows: Rows) -> tuple[tuple[Admission, ...], tuple[Transfer, ...]]:
        """Admit while there are tokens, slots and pages; returns the plan's admissions and transfers."""
        state = self._state
        admissions: list[Admission] = []
        transfers: list[Transfer] = []
        computed = state.slots.computed
        self._filling = [one for one in self._filling if one.slot >= 0 and computed[one.slot] < one.num_prompt - 1]
        while rows.budget > 0:
            sequence = state.waiting.first()
            if sequence is None:
                break
            if sequence.request.pooling is not None and len(sequence.tokens) > rows.budget:
                break  # A vector takes the whole prompt in one step.
            if sequence.num_encoder >= rows.budget:
                break  # So does an encoder its input, and then the decoder begins.
            if state.slots.num_free == 0:
                if state.slots.num_pending == 0:
                    self._make_way(sequence, rows)
                break
            if self._filling and self._is_coming(sequence):
                break
            admission = self._fork(sequence) or self._enter(sequence, transfers)
            if admission is None:
                if state.allocator.pool.pending_pages == 0:
                    self._make_way(sequence, rows)
                break
            admissions.append(admission)
            rows.budget -= len(admission.encoder_tokens)
            self._first_chunk(sequence, rows)
        return tuple(admissions), tuple(transfers)

    def transfers_ended(self, result: StepResult) -> None:
        """Let sequences whose transfers ended go on: with the prefix, or without it if the transfer failed."""
        state = self._state
        for ticket, good in [*((t, True) for t in result.finished), *((t, False) for t in result.failed)]:
            loading = self.loading.pop(ticket, None)
            if loading is None:
                continue
            for block in loading.leased:
                state.allocator.pool.release(block, state.last_plan)
            slot = loading.slot
            if state.slots.generation[slot] != loading.generation:
                continue
            state.slots.loading[slot] = False
            if good:
                state.slots.computed[slot] = loading.num_tokens
                state.note_computed(slot)

    def _make_way(self, sequence: Sequence, rows: Rows) -> None:
        """Under the priority policy, preempt the last running sequence for one of better priority."""
        state = self._state
        victim = max(state.running, key=lambda running: running.order, default=None)
        if victim is not None and victim.order[0] > sequence.order[0]:
            rows.drop(victim.slot)
            state.preempt(victim)

    def _is_coming(self, sequence: Sequence) -> bool:
        """Whether a running sequence computes tokens that this one begins with, too: it takes them from the cache soon."""
        state, unit = self._state, self._state.allocator.geometry.hash_unit
        if sequence.computes_all or sequence.parent is not None or state.allocator.has_states:
            return False
        holding = self._holding(sequence)
        units = (state.allocator.match(holding, sequence.tokens) + _WORTH_WAITING) // unit
        return any(
            one.holding.chain[units - 1 : units] == holding.chain[units - 1 : units] != []
            and state.slots.computed[one.slot] < units * unit
            for one in self._filling
            if one.holding is not None
        )

    def _holding(self, sequence: Sequence) -> Holding:
        """Return what a waiting sequence holds. Kept while it waits at the head: its prompt is hashed once, not in every step."""
        if sequence.holding is None:
            sequence.holding = self._state.allocator.hold(sequence.request.cache_salt, sequence.num_encoder)
        return sequence.holding

    def _fork(self, sequence: Sequence) -> Admission | None:
        state, parent, prompt = self._state, sequence.parent, sequence.num_prompt
        if parent is None or parent.slot < 0 or len(sequence.tokens) > prompt:
            return None
        if state.slots.loading[parent.slot] or state.slots.computed[parent.slot] < prompt - 1:
            return None
        assert parent.holding is not None
        holding = state.allocator.hold(sequence.request.cache_salt, sequence.num_encoder)
        if not state.allocator.fork(parent.holding, holding, state.slots.next_free, prompt - 1):
            return None
        return self._take_slot(sequence, holding, prompt - 1, parent.num_cached, encodes=False)

    def _enter(self, sequence: Sequence, transfers: list[Transfer]) -> Admission | None:
        state, tokens = self._state, sequence.tokens
        allocator = state.allocator
        holding = self._holding(sequence)
        matched = 0 if sequence.computes_all else allocator.match(holding, tokens)
        # Room for some output, so that it is not preempted at once; a sequence alone may use the last page.
        wanted = min(len(tokens) + (allocator.geometry.hash_unit if state.running else 0), sequence.limit)
        cost = allocator.cost(holding, matched, wanted, state.limits.max_num_batched_tokens)
        others = state.running or self.loading or allocator.pool.pending_pages
        if cost > allocator.pool.available_pages - state.reserved_pages:
            if others:
                return None
            if allocator.has_states:
                matched = 0  # A checkpoint takes pages too, until it is copied.
        slot = state.slots.next_free
        allocator.adopt(holding, slot, matched)
        if sequence.num_encoder:
            grown = allocator.grow(holding, slot, 0)  # The encoder's output, whose length is settled.
            assert grown
        if not sequence.started and state.limits.enable_prefix_caching:
            state.tally.prefix_queries += len(tokens)
            state.tally.prefix_hits += matched
        admission = self._take_slot(sequence, holding, matched, matched, encodes=sequence.num_encoder > 0)
        # Sources have what tokens keep, and no hidden states of which a vector is made.
        fetches = allocator.fetches and not sequence.computes_all
        offer = self._source.lookup(sequence.request, tokens, matched) if fetches else None
        if offer is not None and allocator.pages_to_grow(holding, offer.num_tokens) <= allocator.pool.available_pages:
            transfers.append(self._load(sequence, holding, matched, offer))
        return admission

    def _take_slot(
        self, sequence: Sequence, holding: Holding, num_computed: int, num_cached: int, *, encodes: bool
    ) -> Admission:
        state, request = self._state, sequence.request
        state.waiting.pop()
        slot = state.start(sequence, holding, num_computed)
        if len(sequence.tokens) - num_computed > _WORTH_WAITING:
            self._filling.append(sequence)
        if not sequence.started:
            sequence.started = True
            sequence.num_cached = num_cached
            if sequence.choice == 0:
                state.tally.prompt_tokens += sequence.num_prompt
            start = Start(key=request.key, choice=sequence.choice, num_cached=num_cached, time=self._clock())
            state.tally.starts.append(start)
        return Admission(
            slot=slot,
            generation=int(state.slots.generation[slot]),
            key=request.key,
            choice=sequence.choice,
            tokens=sequence.tokens,
            num_prompt=sequence.num_prompt,
            num_computed=num_computed,
            seed=request.seed,
            stop_ids=request.stop_ids,
            sampling=request.sampling,
            bad_tokens=request.bad_tokens,
            pooling=request.pooling,
            num_encoder=sequence.num_encoder,
            encoder_tokens=request.encoder_tokens if encodes and request.encoder_tokens is not None else int32(),
        )

    def _load(self, sequence: Sequence, holding: Holding, matched: int, offer: Offer) -> Transfer:
        state, slot = self._state, sequence.slot
        allocator = state.allocator
        assert matched < offer.num_tokens < len(sequence.tokens)
        grown = allocator.grow(holding, slot, offer.num_tokens)
        assert grown
        state.reserve(sequence, len(sequence.tokens))
        state.note_capacity(sequence)
        pages, leased = allocator.lease(holding, matched)
        ticket = self._next_ticket
        self._next_ticket += 1
        generation = int(state.slots.generation[slot])
        self.loading[ticket] = Loading(slot, generation, offer.num_tokens, leased)
        state.slots.loading[slot] = True
        return Transfer(ticket=ticket, slot=slot, generation=generation, source=offer.blob, pages=pages)

    def _first_chunk(self, sequence: Sequence, rows: Rows) -> None:
        state, slot = self._state, sequence.slot
        if state.slots.loading[slot]:
            return
        start = int(state.slots.computed[slot])
        assert sequence.holding is not None
        whole = sequence.request.pooling is not None
        count = min(rows.budget, len(sequence.tokens) - start)
        count = count if whole else state.allocator.fitting(sequence.holding, start, count)
        if count and state.allocator.grow(sequence.holding, slot, start + count):
            last = start + count == len(sequence.tokens)
            state.reserve(sequence, 0 if last else len(sequence.tokens))
            state.note_capacity(sequence)
            rows.chunk(slot, start, count, last and not whole)
