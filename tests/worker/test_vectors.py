"""Vectors through the whole engine: BERT, which keeps nothing and has no head, and a decoder that is asked for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.protocol.pooling import PoolingParams
from tests.models.encoders import PROMPTS, make_bert, pooled, vectors_differ
from tests.models.oracle import make_oracle
from tests.worker.engine import SmallEngine


@pytest.mark.parametrize("normalize", [True, False])
def test_bert_gives_the_vectors_of_transformers(tmp_path: Path, normalize: bool) -> None:
    oracle = make_bert()
    oracle.save_pretrained(tmp_path)
    assert vectors_differ(tmp_path, oracle, normalize=normalize) < 1e-4


def test_bert_does_not_generate(tmp_path: Path) -> None:
    make_bert().save_pretrained(tmp_path)
    engine = SmallEngine(tmp_path)
    assert (engine.report.layers, engine.report.generates) == ((), False)
    engine.ask(0, PROMPTS[1], 4)
    engine.ask(1, PROMPTS[1], pooling=PoolingParams())
    engine.run()
    engine.close()
    assert (engine.finishes[0].reason, engine.finishes[1].reason) == ("error", "stop")
    assert "does not generate" in engine.finishes[0].message
    assert engine.ids == {}


def test_a_decoder_gives_vectors_beside_its_tokens(tmp_path: Path) -> None:
    oracle = make_oracle("llama", {})
    oracle.save_pretrained(tmp_path)
    engine = SmallEngine(tmp_path)
    for key, prompt in enumerate(PROMPTS):
        vector = PoolingParams(pooling="last") if key % 2 else None
        engine.ask(key, prompt, 0 if vector else 4, pooling=vector)
    engine.run()
    engine.close()
    assert sorted(engine.vectors) == [1, 3]
    for key in (1, 3):
        expected = pooled(oracle.model, PROMPTS[key], "last", normalize=True)
        torch.testing.assert_close(torch.from_numpy(engine.vectors[key]), expected, rtol=1e-4, atol=1e-4)
    assert {key: len(ids) for (key, _), ids in engine.ids.items()} == {0: 4, 2: 4, 4: 4}
