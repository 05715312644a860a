"""An engine without a model, run step by step against the worker that checks every page; and what it must answer."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from octavo.constrain.matcher import Grammars
from octavo.engine.core import EngineCore
from octavo.engine.kvcache.blocks import BlockPool, CacheEvent
from octavo.engine.kvcache.geometry import Geometry, GroupGeometry
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.scheduler import Scheduler
from octavo.engine.schedule.transfers import Offer
from octavo.protocol.arrays import int32
from octavo.protocol.kept import KeptState, KeptTokens, Plane
from octavo.protocol.output import Finish, TokenDelta
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.step import BlobRef, StepPlan
from tests.engine.fake_worker import FakeExecutor, Slot, next_token, vector_of

UNIT = 4


def check_pool(pool: BlockPool) -> None:
    """Assert every invariant of the pool's accounting, in time linear in the pool."""
    owned = [page for pages in pool._pages for page in pages]
    assert sorted(owned + pool._free) == list(range(pool.num_pages)), "a page is owned twice, or lost"
    used = sum(len(pool._pages[b]) for b in range(pool.num_pages) if pool._references[b] > 0)
    assert used == pool.used_pages
    assert pool.cached_pages == sum(len(pool._pages[b]) for b in pool._cached)
    waiting = [b for b in range(pool.num_pages) if pool._pending_plan[b] >= 0]
    assert pool.pending_pages == sum(len(pool._pages[b]) for b in waiting)
    assert not any(pool._references[b] for b in [*waiting, *pool._cached])
    assert {pool._names[b]: b for b in pool._found.values()} == pool._found


def group(num_layers: int = 1, block: int = UNIT, window: int | None = None, pages_per_block: int = 1) -> GroupGeometry:
    plane = Plane(name="k", heads=1, dim=1, dtype="float32", itemsize=4)
    return GroupGeometry(
        layers=tuple(range(num_layers)),
        kept=KeptTokens(planes=(plane,), window=window),
        block=block,
        bundle=1,
        pages_per_block=pages_per_block,
    )


def states(interval: int, pages: int = 1, live: int = 1) -> GroupGeometry:
    plane = Plane(name="state", heads=1, dim=1, dtype="float32", itemsize=4)
    return GroupGeometry(
        layers=(0,),
        kept=KeptState(planes=(plane,)),
        block=interval,
        bundle=1,
        pages_per_block=pages,
        live=live,
    )


GEOMETRIES = {
    "full": Geometry(page_bytes=1, groups=(group(),), hash_unit=UNIT),
    "full and sliding": Geometry(page_bytes=1, groups=(group(), group(window=6, pages_per_block=2)), hash_unit=UNIT),
    "two blocks": Geometry(
        page_bytes=1, groups=(group(block=2 * UNIT, pages_per_block=2), group(window=9)), hash_unit=UNIT
    ),
    "sliding": Geometry(page_bytes=1, groups=(group(window=5),), hash_unit=UNIT),
    "three windows": Geometry(
        page_bytes=1,
        groups=(group(window=1), group(window=7, pages_per_block=2), group(block=2 * UNIT, window=20)),
        hash_unit=UNIT,
    ),
    "large and small blocks": Geometry(
        page_bytes=1, groups=(group(block=4 * UNIT), group(pages_per_block=3)), hash_unit=UNIT
    ),
    "states": Geometry(page_bytes=1, groups=(states(UNIT),), hash_unit=UNIT),
    "full and states": Geometry(page_bytes=1, groups=(group(), states(2 * UNIT, pages=3)), hash_unit=UNIT),
    "sliding and two states": Geometry(
        page_bytes=1, groups=(states(3 * UNIT), group(window=6), states(3 * UNIT, pages=2)), hash_unit=UNIT
    ),
}


def with_encoder(geometry: Geometry, *groups: GroupGeometry) -> Geometry:
    """Add groups that keep an encoder's output."""
    kept = [structs.replace(g, kept=structs.replace(g.kept, encoder=True)) for g in groups]
    return structs.replace(geometry, groups=(*geometry.groups, *kept))


GEOMETRIES |= {
    "full and encoder": with_encoder(GEOMETRIES["full"], group(pages_per_block=2)),
    "sliding, state and encoder": with_encoder(GEOMETRIES["sliding and two states"], group(block=2 * UNIT)),
}


def with_live(geometry: Geometry, tokens_per_step: int) -> Geometry:
    """Keep a state for every draft position, and the one before them."""
    live = 1 if tokens_per_step == 1 else tokens_per_step + 1
    groups = tuple(structs.replace(g, live=live) if g.is_state else g for g in geometry.groups)
    return structs.replace(geometry, groups=groups)


def request(key: int, prompt: list[int], *, max_tokens: int = 8, stops: tuple[int, ...] = (), **kwargs) -> Request:
    params = SamplingParams(
        n=kwargs.pop("n", 1), max_tokens=max_tokens or None, min_tokens=min(kwargs.pop("min_tokens", 0), max_tokens)
    )
    return Request(
        key=key, tokens=int32(prompt), sampling=params, stop_ids=stops, max_tokens=max_tokens, seed=key % 7, **kwargs
    )


def expected(request: Request, choice: int) -> tuple[list[int], str]:
    """What a choice must answer, worked out without any engine."""
    history, output = request.tokens.tolist(), []
    while len(output) < request.max_tokens:
        token = next_token(history, request.seed, choice)
        history.append(token)
        output.append(token)
        if token in request.stop_ids and len(output) > request.sampling.min_tokens:
            return output, "stop"
    return output, "length"


def never_fits(engine: Engine, asked: Request) -> bool:
    """Whether an engine has to refuse a request, because it has too few pages or cannot do enough at once."""
    shape = engine.geometry
    total = len(asked.tokens) + asked.max_tokens
    encoder = 0 if asked.encoder_tokens is None else len(asked.encoder_tokens)
    pages = shape.pages_of(total, encoder) if asked.pooling is None else shape.pages_at_once(total)
    once = total if asked.pooling is not None else encoder and encoder + 1
    return pages > engine.num_pages or once > engine.budget or (shape.has_encoder and asked.pooling is not None)


class Cache:
    """A source that has the first tokens of every prompt."""

    def __init__(self, step: int) -> None:
        self.step = step

    def lookup(self, request: Request, tokens: np.ndarray, num_cached: int) -> Offer | None:
        num_tokens = (len(tokens) - 1) // self.step * self.step
        if num_tokens <= num_cached or request.key % 2:
            return None
        blob = BlobRef(place="connector:test", dtype="uint8", shape=(1,), owner="test")
        return Offer(num_tokens=num_tokens, blob=blob)


@dataclass
class Engine:
    geometry: Geometry
    num_pages: int
    depth: int = 2
    tokens_per_step: int = 1
    budget: int = 16
    num_slots: int = 4
    max_model_len: int = 128
    policy: str = "fcfs"
    reuse: bool = True
    source: Cache | None = None
    seed: int = 0
    tell: Callable[[list[CacheEvent]], None] | None = None
    grammars: Grammars | None = None
    drafter: Callable[[Slot], list[int]] | None = None
    outputs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    vectors: dict[int, list[float]] = field(default_factory=dict)
    finishes: dict[tuple[int, int], Finish] = field(default_factory=dict)
    acks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = ScheduleLimits(
            max_num_seqs=self.num_slots,
            max_num_batched_tokens=self.budget,
            max_model_len=self.max_model_len,
            policy=self.policy,
            enable_prefix_caching=self.reuse,
            depth=self.depth,
            tokens_per_step=self.tokens_per_step,
            least_shared=1,
        )
        self.scheduler = Scheduler(self.geometry, self.num_pages, limits, source=self.source, clock=lambda: 0.0)
        self.worker = FakeExecutor(
            self.geometry,
            self.num_pages,
            tokens_per_step=self.tokens_per_step,
            budget=self.budget,
            seed=self.seed,
            drafter=self.drafter,
        )
        self.core = EngineCore(self.scheduler, self.worker, self.tell, self.grammars)
        self.starts: dict[tuple[int, int], int] = {}

    def step(self) -> None:
        delta = self.core.step()
        if delta is not None:
            self.take(delta)
        self.check_accounts()

    def check_accounts(self) -> None:
        """Assert that pages, reservations and slots add up."""
        state, stats = self.scheduler.state, self.core.stats()
        check_pool(state.allocator.pool)
        running = state.running
        assert state.reserved_pages == sum(sequence.reserved for sequence in running)
        for each in running:
            length = int(state.slots.length[each.slot])
            assert 0 <= each.reserved <= state.allocator.pages_to_grow(each.holding, length), "reserved twice"
        assert sorted(s.slot for s in running) == [i for i, s in enumerate(state.slots.sequences) if s is not None]
        assert stats.used_slots == len(running) + state.slots.num_pending
        waiting = [one for choices in state.choices.values() for one in choices if one.slot < 0]
        held_back = [child for choices in state.choices.values() for one in choices for child in one.children]
        assert stats.num_waiting_tokens == sum(len(one.tokens) for one in waiting if one not in held_back)

    def take(self, delta: TokenDelta) -> None:
        for row, (key, choice) in enumerate(zip(delta.keys.tolist(), delta.choices.tolist(), strict=True)):
            output = self.outputs.setdefault((key, choice), [])
            assert delta.firsts[row] == len(output), "a token is missing or doubled"
            assert (key, choice) not in self.finishes
            output.extend(delta.ids[delta.offsets[row] : delta.offsets[row + 1]].tolist())
        for row, key in enumerate(delta.vector_keys.tolist()):
            assert delta.vectors is not None
            assert key not in self.vectors
            self.vectors[key] = delta.vectors[row].tolist()
        for start in delta.starts:
            self.starts[start.key, start.choice] = start.num_cached
        for finish in delta.finishes:
            assert (finish.key, finish.choice) not in self.finishes, "finished twice"
            self.finishes[finish.key, finish.choice] = finish
        self.acks.extend(ack.ticket for ack in delta.acks)

    def until(self, happened: Callable[[], bool], limit: int = 300) -> None:
        for _ in range(limit):
            if happened():
                break
            self.step()
        assert happened(), "the engine makes no progress"

    def drain(self, limit: int = 3000) -> None:
        self.until(lambda: not self.core.busy, limit)
        stats = self.core.stats()
        assert (stats.used_pages, stats.pending_pages, stats.used_slots, stats.num_waiting) == (0, 0, 0, 0)
        assert stats.free_pages + stats.cached_pages == stats.num_pages
        assert self.scheduler.state.reserved_pages == 0

    def check_answer(self, asked: Request, disturbed: Container[tuple[int, int]] = ()) -> None:
        """Assert what a request was answered; `disturbed` choices, by key and choice, were ended before their time."""
        if asked.pooling is not None:
            if (asked.key, 0) not in disturbed:
                assert (self.finishes[asked.key, 0].reason, self.finishes[asked.key, 0].num_tokens) == ("stop", 0)
                assert self.vectors[asked.key] == vector_of(asked.tokens.tolist())
                assert self.starts[asked.key, 0] == 0
            return
        for choice in range(asked.sampling.n):
            tokens, reason = expected(asked, choice)
            if (asked.key, choice) in disturbed:
                output = self.outputs.get((asked.key, choice), [])
                assert output == tokens[: len(output)]
                continue
            finish = self.finishes[asked.key, choice]
            assert finish.reason == reason, finish
            assert self.outputs[asked.key, choice] == tokens
            assert finish.num_tokens == len(tokens)
            assert finish.stop_id == (tokens[-1] if reason == "stop" else None)


def plans_of(engine: Engine) -> list[StepPlan]:
    """Keep every plan that the worker gets."""
    plans: list[StepPlan] = []
    submit = engine.worker.submit
    engine.worker.submit = lambda plan: (plans.append(plan), submit(plan))[1]
    return plans
