"""What the scheduler decides, case by case, against the worker that checks every page."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from octavo.engine.kvcache.geometry import Geometry, solve
from octavo.protocol.arrays import int32, int64
from octavo.protocol.control import Control, ResetPrefixCache
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import Abort
from tests.engine.fake_worker import encoder_input
from tests.engine.harness import GEOMETRIES, UNIT, Engine, group, plans_of, request


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
    engine.scheduler.state.limits = replace(engine.scheduler.state.limits, generates=False)
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


def test_no_stream_waits_for_more_than_one_step_of_a_long_prompt_or_of_a_flood():
    """The largest distance between two tokens of a stream is a step of `max_num_batched_tokens` tokens, whatever comes."""
    engine = Engine(GEOMETRIES["full"], 4000, budget=256, num_slots=16, max_model_len=4096)
    for key in range(8):
        engine.core.handle(request(key, [key + 1] * 3, max_tokens=60))
    for _ in range(4):
        engine.step()
    plans = plans_of(engine)
    engine.core.handle(request(8, [20] * 4000, max_tokens=2))
    for key in range(9, 40):
        engine.core.handle(request(key, [key] * 100, max_tokens=2))
    before = {key: len(engine.outputs[key, 0]) for key in range(8)}
    steps = 0
    while (8, 0) not in engine.finishes:
        engine.step()
        steps += 1
        assert {key: len(engine.outputs[key, 0]) - before[key] for key in range(8)} == dict.fromkeys(range(8), steps)
    assert max(int(plan.counts.sum()) for plan in plans) == 256
    # And the prompt gets all that is left of every step, so it does not wait for those behind it.
    assert steps <= -(-4000 // (256 - 8)) + 3


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


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_that_another_computes_is_waited_for_and_computed_once(monkeypatch, depth):
    monkeypatch.setattr("octavo.engine.schedule.admission._WORTH_WAITING", 3 * UNIT)
    engine = Engine(GEOMETRIES["full and sliding"], 300, depth=depth, budget=20)
    front = [family % 7 for family in range(10 * UNIT)]
    asked = [request(key, [*front, key], max_tokens=3) for key in range(3)]
    # It begins like the others, but no further than is worth waiting for.
    asked.append(request(3, [*front[: 2 * UNIT], *range(30)], max_tokens=3))
    for each in asked:
        engine.core.handle(each)
    engine.drain()
    for each in asked:
        engine.check_answer(each)
    assert [engine.starts[key, 0] for key in range(4)] == [0, 10 * UNIT, 10 * UNIT, 2 * UNIT]


def test_who_waits_for_a_prompt_goes_on_when_it_is_aborted(monkeypatch):
    monkeypatch.setattr("octavo.engine.schedule.admission._WORTH_WAITING", UNIT)
    engine = Engine(GEOMETRIES["full"], 300, budget=8)
    front = list(range(2, 2 + 10 * UNIT))
    for key in (0, 1):
        engine.core.handle(request(key, [*front, key], max_tokens=3))
    engine.step()
    assert engine.core.stats().num_running == 1
    engine.core.handle(Abort(keys=int64([0])))
    engine.drain()
    assert engine.starts[1, 0] < 4 * UNIT
    assert len(engine.outputs[1, 0]) == 3
