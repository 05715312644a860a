"""Core and scheduler against a worker that checks every page: random loads, depths, yields, aborts, forks, transfers."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from octavo.protocol.arrays import int32, int64
from octavo.protocol.control import Barrier, Control, ResetPrefixCache
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import Abort, FinishChoice, Request
from tests.engine.fake_worker import VOCABULARY, encoder_input
from tests.engine.harness import GEOMETRIES, Cache, Engine, never_fits, request, with_live

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
    st.sampled_from([1, 1, 1, 2, 3, 6]),
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
        st.tuples(st.just("finish"), st.tuples(st.integers(0, 30), st.integers(0, 5))),
        st.tuples(st.just("finish"), st.tuples(st.integers(0, 3), st.integers(0, 5))),
        st.tuples(st.just("control"), st.sampled_from(["at_once", "at_plan", "after_drain"])),
        st.tuples(st.just("reset"), st.just(0)),
    ),
    min_size=1,
    max_size=24,
)


@settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
@given(
    actions=ACTIONS,
    geometry=st.sampled_from(list(GEOMETRIES)),
    num_pages=st.one_of(st.integers(8, 30), st.integers(30, 60)),
    depth=st.sampled_from([1, 2, 4]),
    tokens_per_step=st.integers(1, 3),
    budget=st.sampled_from([1, 3, 8, 64]),
    num_slots=st.integers(1, 6),
    policy=st.sampled_from(["fcfs", "priority"]),
    reuse=st.booleans(),
    with_source=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_answer_is_right_whatever_happens_beside_it(actions, geometry, num_pages, with_source, **options):
    shape = with_live(GEOMETRIES[geometry], options["tokens_per_step"])
    source = Cache(math.lcm(*(g.block for g in shape.groups))) if with_source else None
    engine = Engine(shape, num_pages, source=source, **options)
    asked: dict[int, Request] = {}
    finished: set[tuple[int, int]] = set()
    aborted: set[tuple[int, int]] = set()
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
        elif action == "abort" and value in asked:
            aborted.update((value, choice) for choice in range(asked[value].sampling.n))
            engine.core.handle(Abort(keys=int64([value])))
        elif action == "finish" and value[0] in asked:
            finished.add(value)
            engine.core.handle(FinishChoice(key=value[0], choice=value[1], num_tokens=0))
        elif action in ("control", "reset"):
            command = Barrier() if action == "control" else ResetPrefixCache()
            when = value if action == "control" else "at_once"
            engine.core.handle(Control(ticket=tickets, command=command, when=when, plan=5))
            tickets += 1
        engine.check_accounts()
    engine.drain()
    assert sorted(engine.acks) == list(range(tickets))
    for key, each in asked.items():
        if never_fits(engine, each):
            assert {engine.finishes[key, choice].reason for choice in range(each.sampling.n)} == {"error"}
        else:
            engine.check_answer(each, finished | aborted)
    assert (aborted - finished) <= set(engine.finishes)
    event(f"preemptions: {min(engine.core.stats().num_preemptions, 3)}")
    event(f"hits: {engine.core.stats().prefix_hits > 0}")
    event(f"shared: {engine.worker.num_shared > 0}")
