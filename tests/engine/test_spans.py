"""Which tokens sequences share: found in page tables, and told when it changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.schedule.spans import find_span
from octavo.protocol.arrays import int32
from tests.engine.harness import GEOMETRIES, UNIT, Engine, plans_of, request

WIDTH = 40


def tables(fronts: list[tuple[int, int]], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Page tables whose rows begin with so many pages of so many families' pages, in slots of any order, with their counts."""
    chance = np.random.default_rng(seed)
    slots = chance.permutation(len(fronts) + 3)[: len(fronts)].astype(np.int32)
    pages = np.arange(1000, 1000 + (len(fronts) + 3) * WIDTH, dtype=np.int32).reshape(-1, WIDTH)
    counts = np.zeros(len(fronts), np.int32)
    for row, (family, length) in enumerate(fronts):
        pages[slots[row], :length] = np.arange(length) + 100 * family
        counts[row] = length + chance.integers(0, WIDTH - length + 1)
        # Beyond lie the pages of others before, perhaps the very ones that follow.
        pages[slots[row], counts[row] :] = np.arange(counts[row], WIDTH) + 100 * family
    return pages, slots, counts


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, WIDTH)), max_size=12), st.integers(1, 60), st.integers(0, 99)
)
def test_a_span_is_shared_by_all_its_slots_and_spares_enough(
    fronts: list[tuple[int, int]], least: int, seed: int
) -> None:
    pages, slots, counts = tables(fronts, seed)
    length, members = find_span(pages, slots, counts, least)
    if length == 0:
        assert len(members) == 0
        return
    assert (len(members) - 1) * length >= least
    assert (pages[members, :length] == pages[members[0], :length]).all()
    held = dict(zip(slots.tolist(), counts.tolist(), strict=True))
    assert min(held[slot] for slot in members.tolist()) >= length


@given(st.lists(st.integers(0, WIDTH), min_size=2, max_size=12), st.integers(0, 99))
def test_of_one_family_a_span_that_spares_half_of_the_most_is_found(lengths: list[int], seed: int) -> None:
    pages, slots, counts = tables([(0, length) for length in lengths], seed)
    longest = sorted(lengths, reverse=True)
    most = max(rank * length for rank, length in enumerate(longest))
    length, members = find_span(pages, slots, counts, 1)
    assert 2 * (len(members) - 1) * length >= most
    assert (length > 0) == (most > 0)
    equal_pages, equal_slots, equal_counts = tables([(0, max(lengths))] * len(lengths), seed)
    assert find_span(equal_pages, equal_slots, equal_counts, 1)[0] == max(lengths)


def test_the_larger_family_wins_and_a_short_front_of_all_may_spare_more() -> None:
    pages, slots, counts = tables([(0, 20)] * 3 + [(1, 20)] * 5, 1)
    assert find_span(pages, slots, counts, 10)[0] == 20
    assert sorted(find_span(pages, slots, counts, 10)[1].tolist()) == sorted(slots[3:].tolist())
    assert find_span(pages, slots, counts, 81) == (0, pytest.approx(int32()))
    pages[slots, :15] = np.arange(15) + 500
    length, members = find_span(pages, slots, counts, 10)
    assert (length, len(members)) == (15, 8)


@pytest.mark.parametrize("shape", ["full", "full and sliding", "two blocks"])
def test_plans_tell_of_a_span_when_it_changes(shape: str) -> None:
    engine = Engine(GEOMETRIES[shape], num_pages=200, budget=64)
    prompt = list(range(2, 2 + 6 * UNIT))
    plans = plans_of(engine)
    engine.core.handle(request(0, prompt, max_tokens=30))
    engine.until(lambda: len(engine.outputs.get((0, 0), ())) > 0)
    for key, tail in ((1, 3), (2, 5)):
        engine.core.handle(request(key, [*prompt, tail], max_tokens=4 * key))
    engine.drain()
    told = [plan.span.tolist() for plan in plans if plan.span is not None]
    assert [len(each) for each in told] == [4, 3, 1]
    assert {each[0] for each in told[:2]} == {6 * UNIT}
    assert told[2] == [0]
    assert engine.worker.num_shared > 10
