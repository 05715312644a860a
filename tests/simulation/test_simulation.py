"""Some seeds with every change; `python -m tests.simulation` runs more. A test finds that faults put in are found."""

from __future__ import annotations

import pytest

from octavo.engine.kvcache.allocator import Allocator
from octavo.engine.schedule.state import ScheduleState
from octavo.engine.streams import Streams
from tests.simulation.world import World

NUM_SEEDS = 250


def test_whatever_the_seed_every_request_ends_once_and_rightly():
    crashes, preemptions, tokens, fates = 0, 0, 0, set()
    for seed in range(NUM_SEEDS):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            error.add_note(f"see it again: python -m tests.simulation --first {seed} --story")
            raise
        crashes, preemptions = crashes + world.num_crashes, preemptions + world.num_preemptions
        tokens += world.num_tokens
        fates |= {one.fate for one in world.asked.values()}
    assert fates == {"answered", "aborted", "lost"}
    assert crashes > NUM_SEEDS / 20
    assert preemptions > NUM_SEEDS / 20
    assert tokens > 20 * NUM_SEEDS


def test_a_seed_tells_the_same_story_twice():
    stories = []
    for _ in range(2):
        world = World(7)
        world.run()
        stories.append(world.story)
    assert stories[0] == stories[1]


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        # What ended before its time comes once more.
        (Streams, "close", lambda close: lambda self, key: key in self._open),
        # An abort forgets the pages.
        (Allocator, "release", lambda release: lambda self, holding, plan: None),
        # A preempted sequence begins with another token.
        (ScheduleState, "preempt", lambda preempt: lambda self, one: (preempt(self, one), _change(one))[0]),
        # Whoever is open hears nothing of the engine's end.
        (Streams, "fail", lambda fail: lambda self, error: None),
    ],
)
def test_a_fault_is_found(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))

    def run_all() -> None:
        for seed in range(60):
            World(seed).run()

    with pytest.raises(Exception):  # noqa: B017 - whatever notices it first
        run_all()


def _change(sequence) -> None:
    if len(sequence.tokens) > sequence.num_prompt:
        sequence.tokens[-1] = (sequence.tokens[-1] + 1) % 40
