"""BART through the whole engine: encoded once, decoded side by side, forked and preempted; greedy ids of `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.encoders import make_bart, tokens_differ
from tests.worker.engine import SmallEngine

COUNT = 36


@pytest.mark.parametrize("scaled", [False, True])
def test_greedy_ids_equal_transformers(tmp_path: Path, scaled: bool) -> None:
    oracle = make_bart(scale_embedding=scaled)
    oracle.save_pretrained(tmp_path)
    engine = SmallEngine(tmp_path)
    assert [group.is_encoder for group in engine.geometry.groups] == [False, True]
    assert [group.layers for group in engine.geometry.groups] == [(0, 1, 2), (3, 4, 5)]
    largest, wrong, near = tokens_differ(engine, oracle, COUNT)
    engine.close()
    assert largest < 1e-3
    assert (wrong, near) == (0, 0)
    # Its favourites are few, but how likely they are depends on everything before.
    assert len({round(logprob, 3) for found in engine.logprobs.values() for logprob in found}) > 60


def test_choices_and_chunks(tmp_path: Path) -> None:
    oracle = make_bart()
    oracle.save_pretrained(tmp_path)
    engine = SmallEngine(tmp_path, budget=42)
    assert tokens_differ(engine, oracle, COUNT, n=3)[1:] == (0, 0)
    engine.close()


def test_too_few_pages(tmp_path: Path) -> None:
    oracle = make_bart()
    oracle.save_pretrained(tmp_path)
    # All four can begin, and three of them will want a block more than is left.
    engine = SmallEngine(tmp_path, num_pages=18)
    assert tokens_differ(engine, oracle, COUNT)[1:] == (0, 0)
    assert engine.run().num_preemptions > 0
    engine.close()
