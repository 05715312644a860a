"""Sequences with states: checkpoints, resuming, forks and tight pools, against the worker that checks every page."""

from __future__ import annotations

import pytest

from tests.engine.harness import GEOMETRIES, UNIT, Engine, expected, plans_of, request, with_live

HYBRID = GEOMETRIES["full and states"]  # A block is 4 tokens, a checkpoint is taken every 8.


def served(engine: Engine, key: int, prompt: list[int], **options) -> int:
    """Serve a request alone; returns how many of its tokens were cached."""
    asked = request(key, prompt, **options)
    engine.core.handle(asked)
    engine.drain()
    engine.check_answer(asked)
    return engine.starts[key, 0]


def test_a_hit_is_where_the_last_checkpoint_is():
    engine = Engine(HYBRID, 60)
    # Full attention has three blocks of it; the state was kept after eight tokens.
    assert [served(engine, key, [5] * 15) for key in range(3)] == [0, 8, 8]
    assert served(engine, 3, [5] * 15, cache_salt="other") == 0
    # Each token changes the state: the prefix of another text is no hit, though it ends alike.
    assert served(engine, 4, [6, *[5] * 14]) == 0


def test_without_states_the_same_prompt_resumes_later():
    assert [served(engine, key, [5] * 15) for engine in [Engine(GEOMETRIES["full"], 60)] for key in range(2)] == [0, 12]


def test_what_was_generated_is_checkpointed_too():
    engine = Engine(HYBRID, 60)
    first = request(0, [1, 2, 3], max_tokens=24)
    assert served(engine, 0, [1, 2, 3], max_tokens=24) == 0
    history = first.tokens.tolist() + expected(first, 0)[0]
    assert served(engine, 1, [*history, 9, 9]) == 24


def test_chunks_end_where_checkpoints_are_taken():
    engine = Engine(HYBRID, 60, budget=64, depth=1)
    plans = plans_of(engine)
    served(engine, 0, list(range(21)), max_tokens=1)
    assert [plan.counts.tolist() for plan in plans if len(plan.slots)] == [[8], [8], [5]]
    pages = HYBRID.groups[1].pages_per_block
    assert [len(plan.copies_after) for plan in plans if len(plan.slots)] == [pages, pages, 0]
    assert all(len(plan.copies_before) == 0 for plan in plans)
    plans.clear()
    served(engine, 1, list(range(21)), max_tokens=1)
    assert [(plan.counts.tolist(), len(plan.copies_before)) for plan in plans if len(plan.slots)] == [([5], pages)]


def test_without_prefix_cache_nothing_is_checkpointed_or_cut():
    engine = Engine(HYBRID, 60, budget=64, depth=1, reuse=False)
    plans = plans_of(engine)
    served(engine, 0, list(range(21)), max_tokens=12)
    assert plans[0].counts.tolist() == [21]
    assert not any(len(plan.copies_after) or len(plan.copies_before) for plan in plans)


@pytest.mark.parametrize(("reuse", "positions"), [(True, 30 + 3 * 6), (False, 4 * 30)])
def test_choices_resume_from_a_checkpoint_or_compute_again(reuse: bool, positions: int):
    engine = Engine(HYBRID, 90, num_slots=4, reuse=reuse)
    asked = request(0, list(range(30)), n=4, max_tokens=2)
    engine.core.handle(asked)
    engine.drain()
    engine.check_answer(asked)
    assert engine.worker.computed_positions <= positions + 4 * 2


def test_a_checkpoint_that_leaves_no_room_to_go_on_is_passed_over():
    engine = Engine(HYBRID, 8)
    assert served(engine, 0, [3] * 8, max_tokens=1) == 0
    assert engine.core.stats().cached_pages == 2 + 3
    # Two blocks, the checkpoint, the live state and one block more are nine pages.
    assert served(engine, 1, [3] * 12, max_tokens=8) == 0
    assert served(engine, 2, [3] * 8, max_tokens=1) == 0


def test_preempted_sequences_compute_their_states_again():
    engine = Engine(HYBRID, 26, num_slots=4)
    asked = [request(key, [key] * 7, max_tokens=24) for key in range(4)]
    for each in asked:
        engine.core.handle(each)
    engine.drain()
    for each in asked:
        engine.check_answer(each)
    assert engine.core.stats().num_preemptions > 0


def test_drafts_that_are_rejected_leave_the_state_before_them():
    engine = Engine(with_live(HYBRID, 3), 90, tokens_per_step=3, seed=4)
    assert with_live(HYBRID, 3).groups[1].pages_of(50) == 4 * 3
    for key in range(6):
        served(engine, key, [key, *range(2 * UNIT)], max_tokens=30)
