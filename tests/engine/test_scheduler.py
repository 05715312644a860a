"""Core and scheduler against a worker that checks every page: random loads, depths, yields, aborts, forks, transfers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from msgspec import structs

from octavo.engine.core import EngineCore
from octavo.engine.kvcache.geometry import Geometry, GroupGeometry, solve
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.scheduler import Scheduler
from octavo.engine.schedule.transfers import Offer
from octavo.protocol.arrays import int32, int64
from octavo.protocol.blob import BlobRef
from octavo.protocol.control import Barrier, Control, ResetPrefixCache
from octavo.protocol.kept import KeptState, KeptTokens, Plane
from octavo.protocol.output import Finish, TokenDelta
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import Abort, FinishChoice, Request
from octavo.protocol.sampling import SamplingParams
from tests.engine.fake_worker import VOCABULARY, FakeExecutor, encoder_input, next_token, vector_of

UNIT = 4


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
    policy: str = "fcfs"
    reuse: bool = True
    source: Cache | None = None
    seed: int = 0
    outputs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    vectors: dict[int, list[float]] = field(default_factory=dict)
    finishes: dict[tuple[int, int], Finish] = field(default_factory=dict)
    acks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = ScheduleLimits(
            max_num_seqs=self.num_slots,
            max_num_batched_tokens=self.budget,
            max_model_len=128,
            policy=self.policy,
            enable_prefix_caching=self.reuse,
            depth=self.depth,
            tokens_per_step=self.tokens_per_step,
        )
        self.scheduler = Scheduler(self.geometry, self.num_pages, limits, source=self.source, clock=lambda: 0.0)
        self.worker = FakeExecutor(
            self.geometry, self.num_pages, tokens_per_step=self.tokens_per_step, budget=self.budget, seed=self.seed
        )
        self.core = EngineCore(self.scheduler, self.worker)
        self.starts: dict[tuple[int, int], int] = {}

    def step(self) -> None:
        delta = self.core.step()
        self.scheduler.allocator.pool.check()
        if delta is not None:
            self.take(delta)

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

    def drain(self, limit: int = 3000) -> None:
        for _ in range(limit):
            if not self.core.busy:
                break
            self.step()
        assert not self.core.busy, "the engine makes no progress"
        stats = self.core.stats()
        assert (stats.used_pages, stats.pending_pages, stats.used_slots, stats.num_waiting) == (0, 0, 0, 0)
        assert stats.free_pages + stats.cached_pages == stats.num_pages
        assert self.scheduler.reserved_pages == 0

    def check_answer(self, asked: Request) -> None:
        if asked.pooling is not None:
            assert (self.finishes[asked.key, 0].reason, self.finishes[asked.key, 0].num_tokens) == ("stop", 0)
            assert self.vectors[asked.key] == vector_of(asked.tokens.tolist())
            assert self.starts[asked.key, 0] == 0
            return
        for choice in range(asked.sampling.n):
            tokens, reason = expected(asked, choice)
            finish = self.finishes[asked.key, choice]
            assert finish.reason == reason, finish
            assert self.outputs[asked.key, choice] == tokens
            assert finish.num_tokens == len(tokens)
            assert finish.stop_id == (tokens[-1] if reason == "stop" else None)


PROMPTS = st.builds(
    lambda family, length, tail: ([family] * 40)[:length] + tail,
    st.integers(0, 2),
    st.integers(0, 30),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6),
)
ADDS = st.builds(
    lambda prompt, max_tokens, stops, n, salt, priority, min_tokens: (
        "add",
        {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stops": stops,
            "n": n,
            "cache_salt": salt,
            "priority": priority,
            "min_tokens": min_tokens,
        }
        if max_tokens < 20
        else {"prompt": prompt, "max_tokens": 0, "pooling": PoolingParams(), "priority": priority},
    ),
    PROMPTS,
    st.integers(1, 24),
    st.lists(st.integers(0, VOCABULARY - 1), max_size=10).map(tuple),
    st.sampled_from([1, 1, 1, 2, 3]),
    st.sampled_from(["", "", "salt"]),
    st.integers(-1, 1),
    st.integers(0, 4),
)
ACTIONS = st.lists(
    st.one_of(
        ADDS,
        ADDS,
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("finish"), st.integers(0, 30)),
        st.tuples(st.just("control"), st.sampled_from(["at_once", "at_plan", "after_drain"])),
        st.tuples(st.just("reset"), st.just(0)),
    ),
    min_size=1,
    max_size=24,
)


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
@given(
    actions=ACTIONS,
    geometry=st.sampled_from(list(GEOMETRIES)),
    num_pages=st.integers(12, 60),
    depth=st.sampled_from([1, 2, 4]),
    tokens_per_step=st.integers(1, 3),
    budget=st.sampled_from([3, 8, 64]),
    num_slots=st.integers(1, 5),
    policy=st.sampled_from(["fcfs", "priority"]),
    reuse=st.booleans(),
    with_source=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_answer_is_right_whatever_happens_beside_it(actions, geometry, num_pages, with_source, **options):
    shape = with_live(GEOMETRIES[geometry], options["tokens_per_step"])
    source = Cache(max(g.block for g in shape.groups)) if with_source else None
    engine = Engine(shape, num_pages, source=source, **options)
    asked: dict[int, Request] = {}
    disturbed: set[int] = set()
    tickets = 0
    for action, value in actions:
        if action == "add":
            key = len(asked)
            if shape.has_encoder:
                value = value | {"encoder_tokens": int32(encoder_input(key, 1 + len(value["prompt"]) % 7))}
            asked[key] = request(key, **value)
            engine.core.handle(asked[key])
        elif action == "step":
            for _ in range(value):
                engine.step()
        elif action in ("abort", "finish") and value in asked:
            disturbed.add(value)
            if action == "abort":
                engine.core.handle(Abort(keys=int64([value])))
            else:
                engine.core.handle(FinishChoice(key=value, choice=asked[value].sampling.n - 1, num_tokens=0))
        elif action in ("control", "reset"):
            command = Barrier() if action == "control" else ResetPrefixCache()
            when = value if action == "control" else "at_once"
            engine.core.handle(Control(ticket=tickets, command=command, when=when, plan=5))
            tickets += 1
    engine.drain()
    assert sorted(engine.acks) == list(range(tickets))
    for key, each in asked.items():
        total = len(each.tokens) + each.max_tokens
        encoder = 0 if each.encoder_tokens is None else len(each.encoder_tokens)
        pages = shape.pages_of(total, encoder) if each.pooling is None else shape.pages_at_once(total)
        once = total if each.pooling is not None else encoder and encoder + 1
        if pages > num_pages or once > options["budget"] or (shape.has_encoder and each.pooling is not None):
            assert {engine.finishes[key, choice].reason for choice in range(each.sampling.n)} == {"error"}
        elif key not in disturbed:
            engine.check_answer(each)
    event(f"preemptions: {min(engine.core.stats().num_preemptions, 3)}")
    event(f"hits: {engine.core.stats().prefix_hits > 0}")


def test_choices_share_what_the_encoder_made_and_preempted_ones_encode_again():
    engine = Engine(GEOMETRIES["full and encoder"], 60, num_slots=4)
    asked = request(0, [5] * 6, n=3, max_tokens=4, encoder_tokens=int32(encoder_input(0, 9)))
    engine.core.handle(asked)
    engine.drain()
    engine.check_answer(asked)
    assert engine.worker.encoded_tokens == 9
    engine = Engine(GEOMETRIES["full and encoder"], 22, num_slots=4)
    many = [request(key, [key] * 3, max_tokens=24, encoder_tokens=int32(encoder_input(key, 5))) for key in range(3)]
    for each in many:
        engine.core.handle(each)
    engine.drain()
    for each in many:
        engine.check_answer(each)
    preempted = engine.core.stats().num_preemptions
    assert preempted > 0
    assert engine.worker.encoded_tokens == 5 * (3 + preempted)


@pytest.mark.parametrize(
    ("geometry", "options", "words"),
    [
        ("full", {"encoder_tokens": int32([1, 2])}, "no encoder"),
        ("full and encoder", {}, "needs an input for its encoder"),
        ("full and encoder", {"encoder_tokens": int32([1] * 16)}, "17 tokens have to be computed in one step"),
        ("full and encoder", {"encoder_tokens": int32([1]), "pooling": PoolingParams()}, "does not give vectors"),
    ],
)
def test_inputs_that_do_not_suit_the_model_are_refused(geometry, options, words):
    engine = Engine(GEOMETRIES[geometry], 60, budget=16)
    engine.core.handle(request(0, [1] * 3, max_tokens=0 if "pooling" in options else 4, **options))
    engine.drain()
    assert engine.finishes[0, 0].reason == "error"
    assert words in engine.finishes[0, 0].message


def test_a_vector_is_computed_in_one_step_and_waits_for_it():
    engine = Engine(GEOMETRIES["full and sliding"], 60, budget=16)
    vectors = [request(key, [key] * 12, max_tokens=0, pooling=PoolingParams()) for key in range(2)]
    for each in (*vectors, request(2, [7] * 3)):
        engine.core.handle(each)
    engine.step()
    # The second does not fit beside the first, and nobody passes it.
    assert list(engine.starts) == [(0, 0)]
    engine.drain()
    for each in (*vectors, request(2, [7] * 3)):
        engine.check_answer(each)
    assert engine.worker.computed_positions == 12 + 12 + 3 + 7


def test_what_a_vector_or_a_model_without_a_head_cannot_do_is_said():
    engine = Engine(GEOMETRIES["full"], 60, budget=16)
    engine.core.handle(request(0, [1] * 17, max_tokens=0, pooling=PoolingParams()))
    engine.drain()
    assert engine.finishes[0, 0].reason == "error"
    assert "max_num_batched_tokens, 16" in engine.finishes[0, 0].message
    engine.scheduler.limits = replace(engine.scheduler.limits, generates=False)
    engine.core.handle(request(1, [1] * 3))
    engine.drain()
    assert "does not generate" in engine.finishes[1, 0].message


def test_without_anything_to_keep_vectors_are_made_all_the_same():
    engine = Engine(solve([]), 1, budget=16)
    for key in range(5):
        engine.core.handle(request(key, [key] * 9, max_tokens=0, pooling=PoolingParams()))
    engine.drain()
    for key in range(5):
        engine.check_answer(request(key, [key] * 9, max_tokens=0, pooling=PoolingParams()))


def test_a_preempted_sequence_goes_on_where_it_was():
    engine = Engine(GEOMETRIES["full"], 14, num_slots=4)
    asked = [request(key, [key] * 5, max_tokens=20) for key in range(4)]
    for each in asked:
        engine.core.handle(each)
    engine.drain()
    for each in asked:
        engine.check_answer(each)
    assert engine.core.stats().num_preemptions > 0


def test_a_preempted_sequence_is_admitted_before_later_arrivals():
    engine = Engine(GEOMETRIES["full"], 12, num_slots=3)
    for key in range(3):
        engine.core.handle(request(key, [key] * 4, max_tokens=24))
    order = []
    for _ in range(400):
        if not engine.core.busy:
            break
        before = set(engine.finishes)
        engine.step()
        order += [key for key, _ in sorted(set(engine.finishes) - before)]
        if len(order) == 1 and len(engine.outputs) < 10 and 9 not in {key for key, _ in engine.outputs}:
            engine.core.handle(request(9, [9] * 4, max_tokens=24))
            order.append(-1)
    assert [key for key in order if key >= 0] == [0, 1, 2, 9]


def test_same_prompt_twice_hits_the_cache_and_salt_keeps_apart():
    engine = Engine(GEOMETRIES["full"], 40)
    prompt = [5] * 15
    for key, salt in enumerate(["", "", "other"]):
        engine.core.handle(request(key, prompt, cache_salt=salt))
        engine.drain()
    assert [engine.starts[key, 0] for key in range(3)] == [0, 12, 0]


def test_the_last_token_is_computed_again_when_all_blocks_are_cached():
    engine = Engine(GEOMETRIES["full"], 40)
    for key in range(2):
        engine.core.handle(request(key, [7] * 16))
        engine.drain()
    assert engine.starts[1, 0] == 12
    engine.check_answer(request(1, [7] * 16))


def test_lookup_comes_before_eviction():
    engine = Engine(GEOMETRIES["full"], 10)
    for key, family in enumerate([1, 2, 1]):
        engine.core.handle(request(key, [family] * 13, max_tokens=3))
        engine.drain()
    assert engine.starts[2, 0] > 0


def test_reset_forgets_and_is_acknowledged():
    engine = Engine(GEOMETRIES["full"], 40)
    engine.core.handle(request(0, [3] * 15))
    engine.drain()
    engine.core.handle(Control(ticket=8, command=ResetPrefixCache()))
    engine.drain()
    engine.core.handle(request(1, [3] * 15))
    engine.drain()
    assert engine.acks == [8]
    assert engine.starts[1, 0] == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "words"), [([1] * 90, 30, ("120 tokens", "pages")), ([1] * 120, 20, ("140", "128"))]
)
def test_what_can_never_fit_is_refused_at_once_and_the_next_is_served(prompt, max_tokens, words):
    engine = Engine(GEOMETRIES["full"], 20)
    engine.core.handle(request(0, prompt, max_tokens=max_tokens))
    engine.core.handle(request(1, [2, 3]))
    engine.step()
    finish = engine.finishes[0, 0]
    assert finish.reason == "error"
    assert all(word in finish.message for word in words)
    engine.drain()
    engine.check_answer(request(1, [2, 3]))


def test_a_failed_row_ends_alone():
    engine = Engine(GEOMETRIES["full"], 40)
    engine.worker.failing_keys = {0}
    for key in range(2):
        engine.core.handle(request(key, [key] * 6))
    engine.drain()
    assert engine.finishes[0, 0].reason == "error"
    assert "NaN" in engine.finishes[0, 0].message
    engine.check_answer(request(1, [1] * 6))
    assert engine.core.stats().failed_rows == 1


def test_forks_share_full_blocks():
    engine = Engine(GEOMETRIES["full"], 60, num_slots=4, reuse=False)
    asked = request(0, list(range(30)), n=4, max_tokens=2)
    engine.core.handle(asked)
    engine.drain()
    engine.check_answer(asked)
    # 30 positions once, then the last one and one output again for each of the three others.
    assert engine.worker.computed_positions <= 30 + 4 + 3 * 2


def test_higher_priority_takes_the_place_of_lower():
    engine = Engine(GEOMETRIES["full"], 30, num_slots=2, policy="priority")
    for key in range(4):
        engine.core.handle(request(key, [key] * 6, max_tokens=20, priority=0))
    for _ in range(5):
        engine.step()
    engine.core.handle(request(9, [9] * 6, max_tokens=20, priority=-5))
    for _ in range(200):
        engine.step()
        if engine.finishes:
            break
    engine.drain()
    for key in range(4):
        engine.check_answer(request(key, [key] * 6, max_tokens=20))
    order = [key for key, _ in engine.finishes]
    assert order.index(9) < order.index(1)


def test_decodes_go_on_while_a_long_prompt_is_prefilled():
    engine = Engine(GEOMETRIES["full"], 60, budget=8)
    engine.core.handle(request(0, [1, 2], max_tokens=40))
    for _ in range(6):
        engine.step()
    engine.core.handle(request(1, [3] * 100, max_tokens=2))
    waits, last = [], len(engine.outputs[0, 0])
    for _ in range(12):
        engine.step()
        waits.append(len(engine.outputs[0, 0]) - last)
        last = len(engine.outputs[0, 0])
    assert waits == [1] * 12


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_decodes_go_before_a_prompt_of_better_priority(depth):
    engine = Engine(GEOMETRIES["full"], 60, budget=8, depth=depth, policy="priority")
    engine.core.handle(request(0, [1, 2], max_tokens=60))
    for _ in range(10):
        engine.step()
    engine.core.handle(request(1, [3] * 100, max_tokens=2, priority=-1))
    begin = len(engine.outputs[0, 0])
    for _ in range(12):
        engine.step()
    # Stages that pass plans along take a sequence once a round, so in every fourth plan.
    assert len(engine.outputs[0, 0]) - begin >= (12 if depth <= 2 else 3)


def test_decodes_are_spread_over_pipeline_stages():
    engine = Engine(GEOMETRIES["full"], 40, depth=3)
    for key in range(4):
        engine.core.handle(request(key, [key], max_tokens=20))
    engine.step()
    numbers = []
    for _ in range(12):
        plan = engine.scheduler.plan()
        if plan is not None:
            engine.worker.submit(plan)
            numbers.append(sorted(plan.slots.tolist()))
        if plan is None or engine.scheduler.num_in_flight == 3:
            engine.scheduler.commit(engine.worker.collect())
    steady = numbers[-6:]
    assert all(len(slots) == 2 for slots in steady)
    assert all(one != other for one, other in itertools.pairwise(steady))


def test_a_sequence_just_preempted_does_not_take_the_pages_its_elder_waits_for():
    shape = Geometry(page_bytes=1, groups=(group(block=4 * UNIT), group(pages_per_block=3)), hash_unit=UNIT)
    engine = Engine(shape, 10, budget=64, num_slots=3)
    asked = request(0, [0] * 5, max_tokens=7, n=2)
    engine.core.handle(asked)
    engine.drain(100)
    engine.check_answer(asked)
    assert engine.core.stats().num_preemptions == 1


def test_lockstep_makes_dummy_plans_of_the_agreed_shape():
    engine = Engine(GEOMETRIES["full"], 20, depth=1)
    plan = engine.scheduler.plan(lockstep=32)
    assert plan is not None
    assert (plan.dummy, plan.shape, len(plan.slots)) == (True, 32, 0)
