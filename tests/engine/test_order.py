"""Who goes before whom: fairness, drains, places in the queue, what the cache forgets first, and who is left alone."""

from __future__ import annotations

import math

import pytest

from octavo.engine.kvcache.blocks import BlockPool
from octavo.protocol.arrays import int64
from octavo.protocol.control import Barrier, Control
from octavo.protocol.request import Abort, FinishChoice
from tests.engine.harness import GEOMETRIES, Engine, check_pool, expected, plans_of, request


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 8])
def test_choices_go_on_when_the_one_they_fork_from_is_ended(steps: int):
    engine = Engine(GEOMETRIES["full"], 60, budget=8)
    asked = request(0, list(range(20)), n=4, max_tokens=9)
    engine.core.handle(asked)
    for _ in range(steps):
        engine.step()
    engine.core.handle(FinishChoice(key=0, choice=0, num_tokens=0))
    engine.drain(200)
    engine.check_answer(asked, {(0, 0)})
    assert sorted(engine.finishes) == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_only_the_choice_that_was_named_ends(ended: int):
    engine = Engine(GEOMETRIES["full"], 60)
    asked = request(0, [4] * 6, n=3, max_tokens=30)
    engine.core.handle(asked)
    for _ in range(8):
        engine.step()
    had = len(engine.outputs[0, ended])
    assert 0 < had < 30
    engine.core.handle(FinishChoice(key=0, choice=ended, num_tokens=had))
    engine.drain()
    assert len(engine.outputs[0, ended]) == had
    assert (0, ended) not in engine.finishes, "nobody asked for a word about it"
    engine.check_answer(asked, {(0, ended)})


def test_choices_fork_as_soon_as_the_prompt_is_computed():
    engine = Engine(GEOMETRIES["full"], 60, depth=1)
    engine.core.handle(request(0, [4, 4], n=3, max_tokens=12))
    assert engine.core.stats().num_waiting == 3
    for running in (1, 3):
        engine.step()
        assert (engine.core.stats().num_running, engine.core.stats().num_waiting) == (running, 3 - running)
    engine.drain()


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_abort_ends_every_choice_and_says_so(steps: int):
    engine = Engine(GEOMETRIES["full"], 60)
    other = request(1, [5] * 3, max_tokens=20)
    for each in (request(0, [4] * 5, n=3, max_tokens=20), other):
        engine.core.handle(each)
    for _ in range(steps):
        engine.step()
    engine.core.handle(Abort(keys=int64([0, 77])))
    engine.step()
    ends = {key: (finish.reason, finish.num_tokens) for key, finish in engine.finishes.items()}
    assert ends == {(0, choice): ("abort", len(engine.outputs.get((0, choice), []))) for choice in range(3)}
    engine.drain()
    engine.check_answer(other)


@pytest.mark.parametrize(("depth", "most"), [(1, 1), (2, 2), (3, 1), (4, 1)])
def test_a_sequence_is_in_two_plans_at_most_and_in_one_where_stages_pass_plans_along(depth: int, most: int):
    engine = Engine(GEOMETRIES["full"], 60, depth=depth)
    engine.core.handle(request(0, [4] * 5, max_tokens=40))
    seen: set[int] = set()
    for _ in range(40):
        plan = engine.scheduler.plan()
        if plan is not None:
            engine.worker.submit(plan)
            seen.add(int(engine.scheduler.state.slots.in_flight[0]))
        if plan is None or engine.scheduler.num_in_flight == depth:
            engine.scheduler.commit(engine.worker.collect())
    assert max(seen) == most


@pytest.mark.parametrize(
    ("depth", "tokens_per_step", "budget", "room"),
    [(1, 3, 8, 2), (2, 3, 8, 2), (2, 2, 3, 1), (3, 1, 64, 3), (4, 1, 64, 2)],
)
def test_decodes_that_do_not_all_fit_a_plan_take_turns(depth: int, tokens_per_step: int, budget: int, room: int):
    engine = Engine(GEOMETRIES["full"], 200, depth=depth, budget=budget, num_slots=5, tokens_per_step=tokens_per_step)
    plans = plans_of(engine)
    for key in range(5):
        engine.core.handle(request(key, [key], max_tokens=120))
    engine.until(lambda: len(engine.scheduler.state.running) == len(engine.outputs) == 5)
    plans.clear()
    engine.until(lambda: len(plans) == 40)
    assert not engine.finishes
    turns = [set(plan.slots.tolist()) for plan in plans]
    assert max(map(len, turns)) == room
    # Nobody waits longer than it takes to serve all of them once.
    span = math.ceil(5 / room)
    assert all(len(set().union(*turns[i : i + span])) == 5 for i in range(len(turns) - span))


def test_nobody_is_admitted_during_a_drain():
    engine = Engine(GEOMETRIES["full"], 60)
    plans = plans_of(engine)
    engine.core.handle(request(0, [1] * 3, max_tokens=12))
    engine.step()
    engine.core.handle(Control(ticket=5, command=Barrier(), when="after_drain"))
    engine.core.handle(request(1, [2] * 3, max_tokens=4))
    engine.until(lambda: bool(engine.acks))
    barrier = next(plan for plan in plans if plan.controls)
    assert [plan.id for plan in plans if len(plan.slots) and plan.id < barrier.id][-1] == barrier.id - 1
    assert [a.key for plan in plans if plan.id < barrier.id for a in plan.admissions] == [0]
    assert engine.finishes[0, 0].num_tokens == 12, "what ran was served to its end"
    engine.drain()
    for each in (request(0, [1] * 3, max_tokens=12), request(1, [2] * 3, max_tokens=4)):
        engine.check_answer(each)


def test_a_control_of_a_plan_goes_with_that_plan():
    engine = Engine(GEOMETRIES["full"], 60)
    plans = plans_of(engine)
    engine.core.handle(request(0, [1] * 3, max_tokens=20))
    engine.core.handle(Control(ticket=5, command=Barrier(), when="at_plan", plan=7))
    engine.core.handle(Control(ticket=6, command=Barrier(), when="at_once"))
    engine.drain()
    assert [(plan.id, control.ticket) for plan in plans for control in plan.controls] == [(0, 6), (7, 5)]
    # An engine without work makes no plans that could be counted: it does not wait for them.
    engine.core.handle(Control(ticket=7, command=Barrier(), when="at_plan", plan=1000))
    engine.step()
    engine.drain()
    assert engine.acks == [6, 5, 7]


def publish(pool: BlockPool, name: bytes) -> int:
    block = pool.allocate(1)
    pool.publish(block, name)
    return block


def test_what_was_not_used_for_longest_is_forgotten_first():
    pool = BlockPool(3)
    blocks = {name: publish(pool, name) for name in (b"a", b"b", b"c")}
    for plan, name in enumerate((b"b", b"a", b"c")):
        pool.release(blocks[name], plan)
    pool.plan_done(2)
    pool.share(blocks[b"b"])
    pool.release(blocks[b"b"], 3)
    pool.plan_done(3)
    left = []
    for _ in range(3):
        left.append({name for name in blocks if pool.find(name) is not None})
        pool.allocate(1)
    assert left == [{b"a", b"b", b"c"}, {b"b", b"c"}, {b"b"}]
    check_pool(pool)


def test_the_ends_of_prefixes_are_forgotten_before_their_beginnings():
    engine = Engine(GEOMETRIES["full"], 12, num_slots=1)
    for key, family in enumerate([1, 2, 1]):
        engine.core.handle(request(key, [family] * 17, max_tokens=1))
        engine.drain()
    # Four blocks of either are cached; the third request used family 1 last.
    engine.core.handle(request(3, list(range(22)), max_tokens=1))
    engine.drain()
    for key, family in ((4, 1), (5, 2)):
        engine.core.handle(request(key, [family] * 17, max_tokens=1))
        engine.step()
    engine.drain()
    assert [engine.starts[key, 0] for key in (2, 4)] == [16, 16]
    assert engine.starts[5, 0] == 8, "the end of the other prefix had to go, its beginning stayed"


@pytest.mark.parametrize("prompt", [1, 60, 127])
def test_the_context_holds_what_it_says(prompt: int):
    engine = Engine(GEOMETRIES["full"], 60)
    assert engine.scheduler.state.limits.max_model_len == 128
    whole, over = request(0, [1] * prompt, max_tokens=128 - prompt), request(1, [1] * prompt, max_tokens=129 - prompt)
    for each in (whole, over):
        engine.core.handle(each)
    engine.drain()
    engine.check_answer(whole)
    assert len(engine.outputs[0, 0]) == 128 - prompt
    assert (engine.finishes[1, 0].reason, engine.finishes[1, 0].num_tokens) == ("error", 0)
    assert "129" in engine.finishes[1, 0].message


def test_pages_that_a_prompt_will_take_are_nobody_elses():
    # Chunks end where states are kept, so that the first prompt leaves tokens of the budget to others.
    engine = Engine(GEOMETRIES["full and states"], 16, budget=64)
    asked = [request(0, [1] * 32, max_tokens=4), request(1, [2] * 16, max_tokens=4)]
    for each in asked:
        engine.core.handle(each)
    engine.until(lambda: (1, 0) in engine.starts)
    assert (0, 0) in engine.finishes
    engine.drain()
    assert engine.core.stats().num_preemptions == 0
    for each in asked:
        engine.check_answer(each)


@pytest.mark.parametrize("steps", [2, 5])
def test_nobody_is_preempted_for_pages_that_are_on_their_way_back(steps: int):
    engine = Engine(GEOMETRIES["full"], 6, depth=2)
    asked = [request(key, [key] * 4, max_tokens=8) for key in range(3)]
    for each in asked:
        engine.core.handle(each)
    for _ in range(steps):
        engine.step()
    engine.core.handle(Abort(keys=int64([2])))
    engine.drain()
    assert engine.core.stats().num_preemptions == 0
    for each in asked[:2]:
        engine.check_answer(each)


def order_of_ends(engine: Engine) -> list[tuple[int, int]]:
    engine.drain()
    return list(engine.finishes)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_who_waits_takes_nothing_from_its_equals(policy: str):
    engine = Engine(GEOMETRIES["full"], 60, num_slots=2, policy=policy)
    forking = request(0, list(range(40)), n=2, max_tokens=3)
    other = request(1, [7] * 3, max_tokens=30)
    engine.core.handle(forking)
    engine.core.handle(other)
    # The second choice has its place before the other request, which runs already when the prompt has been computed.
    assert order_of_ends(engine) == [(0, 0), (0, 1), (1, 0)]
    for each in (forking, other):
        engine.check_answer(each)
    assert engine.core.stats().num_preemptions == 0


def test_first_come_first_served_knows_no_priorities():
    engine = Engine(GEOMETRIES["full"], 60, num_slots=1)
    for key, priority in enumerate((0, 5, -5)):
        engine.core.handle(request(key, [key] * 3, max_tokens=4, priority=priority))
        engine.step()
    assert order_of_ends(engine) == [(0, 0), (1, 0), (2, 0)]
    assert engine.core.stats().num_preemptions == 0


def test_better_priority_takes_the_last_of_the_worst():
    engine = Engine(GEOMETRIES["full"], 60, num_slots=3, policy="priority")
    asked = [request(key, [key] * 3, max_tokens=20, priority=priority) for key, priority in enumerate((1, 2, 2))]
    for each in asked:
        engine.core.handle(each)
    for _ in range(4):
        engine.step()
    asked.append(request(3, [3] * 3, max_tokens=3, priority=1))
    engine.core.handle(asked[3])
    for _ in range(4):
        engine.step()
    assert [s.request.key for s in engine.scheduler.state.running] == [0, 3, 1]
    assert order_of_ends(engine)[0] == (3, 0)
    assert engine.core.stats().num_preemptions == 1
    for each in asked:
        engine.check_answer(each)


def test_expected_answers_differ_by_choice():
    """Else the tests above would not see one choice in another's place."""
    asked = request(0, [4] * 6, n=3, max_tokens=30)
    assert len({tuple(expected(asked, choice)[0]) for choice in range(3)}) == 3
