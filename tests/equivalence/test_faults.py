"""Faults put in on purpose: the pairs alone find each of them, and say how to see it again."""

from __future__ import annotations

import re

import pytest
import torch

from octavo.engine.kvcache import allocator
from octavo.engine.kvcache.allocator import Allocator
from octavo.engine.schedule.state import ScheduleState
from octavo.ops.draw import CHOICE, SEED, reference
from octavo.ops.draw import cpu as native
from octavo.worker.slots import Slots
from tests.equivalence.draw import draw_cases
from tests.equivalence.features import Case, costly
from tests.equivalence.runner import Report, Runner

PAIRS = [case for case in draw_cases(1, seed=11) if not costly(case.values)]
# Whichever of them a processor takes.
DRAWS = (native, reference)
FORKS_WITHOUT_COPIES = (Allocator, "take_table", lambda take: lambda self: (take(self)[0], [], []))
FAULTS = {
    "a block is known by its own tokens alone": (
        allocator,
        "chain_next",
        lambda chain: lambda parent, tokens: chain(b"", tokens),
    ),
    "nothing is ever found in the cache": (Allocator, "match", lambda match: lambda self, holding, tokens: 0),
    "forks share the block that they write": FORKS_WITHOUT_COPIES,
    "all choices draw the same numbers": (
        DRAWS,
        "draw",
        lambda draw: (
            lambda logits, slots, positions, reals, wholes: draw(
                logits, slots, positions, reals, wholes.index_fill(1, torch.tensor([CHOICE]), 0)
            )
        ),
    ),
    "numbers depend on where a row stands": (
        DRAWS,
        "draw",
        lambda draw: (
            lambda logits, slots, positions, reals, wholes: draw(
                logits, torch.arange(len(slots)), positions, reals[slots], _moved(wholes[slots])
            )
        ),
    ),
    "a slot's pages outlive its owner": (Slots, "_release", lambda release: lambda self, slots: None),
    "a block stays behind": (
        Allocator,
        "release",
        lambda release: lambda self, holding, plan: _keep_one(release, self, holding, plan),
    ),
    "preemption loses a token": (
        ScheduleState,
        "preempt",
        lambda preempt: lambda self, one: _lose_a_token(preempt, self, one),
    ),
}


def _moved(wholes):
    wholes[:, SEED] += torch.arange(len(wholes))
    return wholes


def _keep_one(release, self, holding, plan):
    for held in holding.blocks:
        held[:] = held[:-1]
    release(self, holding, plan)


def _lose_a_token(preempt, self, sequence):
    preempt(self, sequence)
    if len(sequence.tokens) > sequence.num_prompt:
        sequence.tokens[-1] = 3


def put_in(monkeypatch, fault):
    owners, name, broken = fault
    for owner in owners if isinstance(owners, tuple) else (owners,):
        monkeypatch.setattr(owner, name, broken(getattr(owner, name)))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(tiny_model, monkeypatch, name):
    put_in(monkeypatch, FAULTS[name])
    runner = Runner(tiny_model("llama"), Report())
    assert any(runner.wrong(case) for case in PAIRS)
    runner.close()


def test_a_difference_comes_with_the_shortest_line_that_shows_it(tiny_model, monkeypatch):
    put_in(monkeypatch, FORKS_WITHOUT_COPIES)
    report = Report()
    model = tiny_model("llama")
    Runner(model, report).run([Case.parse("batch=4 budget=33 choices=3 sampling=seeded prefix=on aborts=some seed=2")])
    (difference,) = report.differences
    case = re.search(r"python -m tests.equivalence --model llama --case '(.*)'$", difference)
    assert case is not None
    assert case[1] == "choices=3 seed=2"
    monkeypatch.undo()
    sound = Runner(model, Report())
    assert sound.wrong(Case.parse(case[1])) == []
    sound.close()
