"""Grammars that cannot be compiled: the requests that came with them are answered, and nobody else notices."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from octavo import launch
from octavo.base.errors import InvalidRequestError
from octavo.engine.core import EngineCore
from tests.engine.harness import GEOMETRIES, Engine, request


@pytest.mark.parametrize("error", [InvalidRequestError("not a grammar: why"), ValueError("why"), OSError("why")])
def test_whatever_compiling_raises_ends_one_request(error: Exception) -> None:
    failed = Future[Any]()
    failed.set_exception(error)
    engine = Engine(GEOMETRIES["full"], num_pages=60)
    grammars: Any = SimpleNamespace(compile=lambda _: failed)
    engine.core = EngineCore(engine.scheduler, engine.worker, grammars=grammars)
    asked = request(1, [1, 2, 3], max_tokens=4)
    engine.core.handle(msgspec.structs.replace(request(0, [1, 2], max_tokens=4), grammar="start:"))
    engine.core.handle(asked)
    engine.drain()
    assert engine.finishes[0, 0].reason == "error"
    assert "why" in engine.finishes[0, 0].message
    engine.check_answer(asked)


@pytest.mark.parametrize(("own", "tokenizers", "ends"), [((7, 300), None, [7]), ((), 0, [0]), ((3,), 299, [3, 299])])
def test_only_ids_of_the_vocabulary_end_an_answer(
    monkeypatch: pytest.MonkeyPatch, own: tuple[int, ...], tokenizers: int | None, ends: list[int]
) -> None:
    assert _vocabulary(monkeypatch, own, tokenizers).ends == ends


def test_a_model_whose_answers_have_no_end_takes_no_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match="no token that ends an answer"):
        _vocabulary(monkeypatch, (), None)


def _vocabulary(monkeypatch: pytest.MonkeyPatch, own: tuple[int, ...], tokenizers: int | None) -> Any:
    tokenizer = SimpleNamespace(eos_token_id=tokenizers, token_bytes=lambda index: bytes((index % 256,)), markers={})
    monkeypatch.setattr(launch, "load_tokenizer", lambda _: tokenizer)
    facts = SimpleNamespace(eos_token_ids=own, vocab_size=300)
    checkpoint: Any = SimpleNamespace(tokenizer="there", facts=facts)
    return launch._vocabulary(checkpoint)
