"""State machines: pages of the pool, the longest prefix to resume from and streams of a client, each beside a simple model.

The scheduler and the allocator above the pool have theirs in `test_random_loads.py`, everything together in `tests/simulation`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from octavo.base.errors import EngineDeadError
from octavo.engine.kvcache.blocks import BlockPool
from octavo.engine.kvcache.prefix import longest_resume
from octavo.engine.streams import Inbox, Streams
from octavo.protocol.output import Finish
from tests.engine.harness import UNIT, check_pool, group, states
from tests.engine_process.test_streams import delta, request

SETTINGS = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
NUM_PAGES = 12


class PoolMachine(RuleBasedStateMachine):
    """held: references by block. pending, cached: blocks in order. names: of what can be found, by block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_PAGES)
        self.held: dict[int, int] = {}
        self.pages: dict[int, tuple[int, ...]] = {}
        self.pending: list[tuple[int, int]] = []
        self.cached: list[int] = []
        self.names: dict[int, bytes] = {}
        self.plan = 0

    def free_pages(self) -> int:
        return NUM_PAGES - sum(map(len, self.pages.values()))

    @rule(count=st.integers(1, 4))
    def allocate(self, count: int) -> None:
        if self.pool.available_pages < count:
            assert self.free_pages() + sum(len(self.pages[block]) for block in self.cached) < count
            return
        # The longest unused go first, and no more than have to.
        while self.free_pages() < count:
            forgotten = self.cached.pop(0)
            del self.names[forgotten], self.pages[forgotten]
        block = self.pool.allocate(count)
        taken = self.pool.pages(block)
        assert len(set(taken)) == count
        assert not set(taken) & {page for pages in self.pages.values() for page in pages}
        self.held[block], self.pages[block] = 1, taken

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def share(self, data: Any) -> None:
        block = data.draw(st.sampled_from(sorted(self.pages)))
        self.pool.share(block)
        self.held[block] = self.held.get(block, 0) + 1
        self.pending = [one for one in self.pending if one[1] != block]
        self.cached = [one for one in self.cached if one != block]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ahead=st.integers(0, 1))
    def release(self, data: Any, ahead: int) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        # Plans are done in order, so blocks are given back in order of the plans they wait for.
        self.plan += ahead
        self.pool.release(block, self.plan)
        self.held[block] -= 1
        if not self.held[block]:
            del self.held[block]
            self.pending.append((self.plan, block))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), number=st.integers(0, 5))
    def publish(self, data: Any, number: int) -> None:
        block, name = data.draw(st.sampled_from(sorted(self.held))), bytes([number, 0])
        is_new = block not in self.names and name not in self.names.values()
        assert self.pool.publish(block, name) == is_new
        if is_new:
            self.names[block] = name

    @rule(behind=st.integers(0, 2))
    def plan_done(self, behind: int) -> None:
        done = self.plan - behind
        self.pool.plan_done(done)
        for plan, block in [one for one in self.pending if one[0] <= done]:
            self.pending.remove((plan, block))
            if block in self.names:
                self.cached.append(block)
            else:
                del self.pages[block]

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        for block in self.cached:
            del self.pages[block]
        self.cached, self.names = [], {}

    @invariant()
    def agrees(self) -> None:
        check_pool(self.pool)
        assert self.pool.free_pages == self.free_pages()
        assert self.pool.pending_pages == sum(len(self.pages[block]) for _, block in self.pending)
        assert self.pool.used_pages == sum(len(self.pages[block]) for block in self.held)
        for number in range(6):
            name = bytes([number, 0])
            found = [block for block, known in self.names.items() if known == name]
            assert self.pool.find(name) == (found[0] if found else None)
        assert [self.pool.pages(block) for block in self.pages] == list(self.pages.values())
        assert all(self.pool.idle(block) == (block not in self.held) for block in self.pages)


class StreamsMachine(RuleBasedStateMachine):
    """waiting: ids and ends that have come for open requests and have not been taken, by key and choice."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = Streams(front=1)
        self.inboxes: dict[int, Inbox] = {}
        self.waiting: dict[int, dict[int, tuple[list[int], bool]]] = {}
        self.lengths: dict[tuple[int, int], int] = {}
        self.woken: dict[int, int] = {}
        self.calls: dict[int, int] = {}

    def _wake(self, key: int) -> None:
        self.calls[key] = self.calls.get(key, 0) + 1

    @rule()
    def open(self) -> None:
        key = self.streams.new_key()
        self.inboxes[key] = self.streams.open(request(key), lambda: self._wake(key))
        self.waiting[key] = {}

    @rule(
        rows=st.lists(
            st.tuples(st.integers(1, 6), st.integers(0, 2), st.lists(st.integers(0, 99), max_size=3)), max_size=5
        ),
        ends=st.booleans(),
    )
    def deliver(self, rows: list[tuple[int, int, list[int]]], ends: bool) -> None:
        # One row for a choice; some keys were never opened, some are closed.
        chosen = {((1 << 48) + number, choice): ids for number, choice, ids in rows}
        sent = [(key, choice, self.lengths.get((key, choice), 0), ids) for (key, choice), ids in chosen.items()]
        finishes = [Finish(key=key, choice=choice, num_tokens=99, reason="length") for key, choice in chosen if ends]
        empty = {key for key, news in self.waiting.items() if not news}
        touched = self.streams.deliver(delta(sent, finishes=tuple(finishes)))
        for key, choice, first, ids in sent:
            self.lengths[key, choice] = first + len(ids)
            if key in self.waiting:
                known, ended = self.waiting[key].get(choice, ([], False))
                self.waiting[key][choice] = (known + ids, ended or ends)
        filled = {key for key in empty if self.waiting[key]}
        assert {inbox.key for inbox in touched} == filled
        for key in filled:
            self.woken[key] = self.woken.get(key, 0) + 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def take(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        taken = {choice: (news.ids, news.finish is not None) for choice, news in self.inboxes[key].take().items()}
        assert taken == self.waiting[key]
        self.waiting[key] = {}

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def close(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.streams.close(key)
        assert not self.streams.close(key)
        del self.waiting[key]

    @rule()
    def fail(self) -> None:
        error = EngineDeadError("gone")
        self.streams.fail(error)
        for key in self.waiting:
            assert self.inboxes[key].error is error
            self.woken[key] = self.woken.get(key, 0) + 1

    @invariant()
    def agrees(self) -> None:
        assert len(self.streams) == len(self.waiting)
        assert self.calls == self.woken


def test_pages_are_where_a_simple_model_has_them() -> None:
    run_state_machine_as_test(PoolMachine, settings=SETTINGS)


def test_streams_hand_out_what_came_once_and_wake_once() -> None:
    run_state_machine_as_test(StreamsMachine, settings=SETTINGS)


GROUPS = {
    "full": group(),
    "wide": group(block=2 * UNIT),
    "sliding": group(window=6),
    "narrow": group(window=1),
    "states": states(2 * UNIT),
}


@settings(max_examples=300, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(GROUPS)), min_size=1, max_size=4, unique=True),
    limit=st.integers(0, 40),
    lost=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=12),
)
def test_the_longest_prefix_is_the_longest_of_which_all_can_go_on(
    names: list[str], limit: int, lost: set[tuple[int, int]]
) -> None:
    groups, step = [GROUPS[name] for name in names], 2 * UNIT

    def can_go_on(tokens: int) -> bool:
        for g, one in enumerate(groups):
            last = tokens // one.block
            if one.is_state:
                needed = {last - 1}
            elif one.window is None:
                needed = set(range(last))
            else:
                # A new token looks at itself and at the window - 1 before it.
                needed = {position // one.block for position in range(max(0, tokens - one.window + 1), tokens)}
            if any((g, index) in lost for index in needed):
                return False
        return True

    found = longest_resume(groups, step, limit, lambda g, index: (g, index) not in lost)
    assert found == max(tokens for tokens in range(0, limit + 1, step) if not tokens or can_go_on(tokens))
