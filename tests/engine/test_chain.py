"""Chains of hashes: the same whatever was hashed before, and others where tokens or salts are."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.kvcache.allocator import Allocator
from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.arrays import Int32Array, int32
from tests.engine.harness import UNIT, group

GEOMETRY = Geometry(page_bytes=1, groups=(group(),), hash_unit=UNIT)


def _chain(allocator: Allocator, tokens: Int32Array, salt: str = "") -> list[bytes]:
    holding = allocator.hold(salt)
    allocator.match(holding, tokens)
    return holding.chain


@pytest.mark.parametrize("common", [0, 1, UNIT, UNIT + 1, 3 * UNIT, 40])
@pytest.mark.parametrize("length", [1, UNIT, UNIT + 1, 17, 40])
def test_prompts_that_begin_alike_have_the_chains_that_they_would_have_alone(common: int, length: int) -> None:
    first, second = np.arange(40, dtype=np.int32), 100 + np.arange(length, dtype=np.int32)
    second[:common] = first[: min(common, length)]
    together = Allocator(GEOMETRY, 100)
    _chain(together, first)
    assert _chain(together, second) == _chain(Allocator(GEOMETRY, 100), second)
    shared = min(common, length - 1) // UNIT
    alone = _chain(Allocator(GEOMETRY, 100), first)
    assert [a == b for a, b in zip(_chain(together, second), alone, strict=False)] == [
        index < shared for index in range(min((length - 1) // UNIT, len(alone)))
    ]


def test_another_salt_has_another_chain() -> None:
    allocator, tokens = Allocator(GEOMETRY, 100), int32(range(20))
    assert not set(_chain(allocator, tokens, "a")) & set(_chain(allocator, tokens, "b"))


def test_what_is_hashed_later_is_not_taken_for_the_prompt() -> None:
    """The chain of the prompt that was hashed last grows with what its sequence makes."""
    allocator, prompt = Allocator(GEOMETRY, 100), int32(range(2 * UNIT))
    holding = allocator.hold("")
    assert allocator.grow(holding, 0, 5 * UNIT)
    allocator.computed(holding, prompt, 2 * UNIT, 0)
    allocator.computed(holding, int32(range(5 * UNIT)), 5 * UNIT, 1)
    other = np.concatenate((prompt, int32(range(900, 900 + 3 * UNIT))))
    assert _chain(allocator, other) == _chain(Allocator(GEOMETRY, 100), other)


def test_tokens_behind_those_that_were_hashed_are_not_the_prompts() -> None:
    """A sequence's history is longer than what is computed of it, and is written on when its chain is remembered already."""
    allocator, prompt = Allocator(GEOMETRY, 100), range(2 * UNIT)
    unknown, made = int32([*prompt, *[7] * 3 * UNIT]), int32([*prompt, *range(50, 50 + 3 * UNIT)])
    holding = allocator.hold("")
    assert allocator.grow(holding, 0, 5 * UNIT)
    allocator.computed(holding, unknown, 2 * UNIT, 0)
    allocator.computed(holding, made, 5 * UNIT, 1)
    assert _chain(allocator, unknown) == _chain(Allocator(GEOMETRY, 100), unknown)
