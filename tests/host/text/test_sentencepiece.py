"""SentencePiece vocabularies, trained here, give the ids and texts of the sentencepiece package: as a file, and in a GGUF."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.base.errors import CheckpointError
from octavo.frontend.text.sentencepiece_file import read_sentencepiece
from octavo.frontend.text.tokenizer import Tokenizer, load_tokenizer
from tests.host.checkpoint.gguf_writer import embedding, llama_metadata, write
from tests.real.prompts import PROMPTS
from tests.texts import TEXTS

# Options of the trainer by kind of model in the wild.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "bpe",
        "byte_fallback": True,
        "split_digits": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
    },
    "gemma": {
        "model_type": "bpe",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<table>", "\u2581\u2581", "\u2581\u2581\u2581", "\n", "\n\n"],
    },
    "t5": {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "unigram with bytes": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity"},
}
SENTENCES = [line for text in (*TEXTS, *PROMPTS) for line in text.splitlines() if line.strip() and "\0" not in line]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def trained(kind: str) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3),
        model_writer=written,
        vocab_size=900,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **KINDS[kind],
    )
    return written.getvalue()


@pytest.fixture(scope="module")
def theirs(trained: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=trained)


@pytest.fixture(scope="module", params=["file", "gguf"])
def ours(
    request: pytest.FixtureRequest, kind: str, trained: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "file":
        (folder / "tokenizer.model").write_bytes(trained)
        return load_tokenizer(str(folder))
    # What the reader of files finds is proved by the other half of the tests.
    (folder / "m.model").write_bytes(trained)
    pieces, names = read_sentencepiece(folder / "m.model")
    metadata = llama_metadata() | {
        "tokenizer.ggml.model": "t5" if pieces.unigram else "llama",
        "tokenizer.ggml.tokens": pieces.texts,
        "tokenizer.ggml.scores": pieces.scores,
        "tokenizer.ggml.token_type": pieces.kinds,
        "tokenizer.ggml.add_space_prefix": pieces.prefix is not None,
        "tokenizer.ggml.remove_extra_whitespaces": pieces.trimmed,
        "tokenizer.ggml.unknown_token_id": pieces.texts.index(names["unk_token"]),
        "tokenizer.ggml.eos_token_id": pieces.texts.index(names["eos_token"]),
    }
    if pieces.charsmap:
        metadata["tokenizer.ggml.precompiled_charsmap"] = list(pieces.charsmap)
    return load_tokenizer(write(folder / "m.gguf", metadata, [embedding()]))


def plain(text: str) -> str:
    """Leave out control tokens, which sentencepiece does not look for in texts, and U+2581, which it takes for a space."""
    for token in ("<s>", "</s>", "<unk>", "<pad>", "\u2581"):
        text = text.replace(token, "")
    return text


def test_texts(ours: Tokenizer, theirs: sentencepiece.SentencePieceProcessor) -> None:
    for text in (*TEXTS, *PROMPTS):
        assert ours.encode(plain(text), add_special_tokens=False) == theirs.encode(plain(text)), text


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.text(max_size=40), st.text("aehorstn 1.\t你é😀", max_size=60)))
def test_any_text(ours: Tokenizer, theirs: sentencepiece.SentencePieceProcessor, text: str) -> None:
    found, expected = ours.encode(plain(text), add_special_tokens=False), theirs.encode(plain(text))
    # Two ways to cut a text may weigh the same, but for the rounding of sums.
    assert found == expected or (weight(theirs, found), theirs.decode(found)) == (
        pytest.approx(weight(theirs, expected), abs=1e-4),
        theirs.decode(expected),
    )


def weight(theirs: sentencepiece.SentencePieceProcessor, ids: list[int]) -> float:
    """Return the logarithm of what a unigram model takes for likeliest; pieces of byte pairs have no such sum."""
    return sum(theirs.get_score(index) for index in ids)


def test_texts_come_back(ours: Tokenizer, theirs: sentencepiece.SentencePieceProcessor) -> None:
    for text in (*TEXTS, *PROMPTS):
        ids = theirs.encode(plain(text))
        if theirs.unk_id() not in ids:
            assert ours.decode(ids) == theirs.decode(ids), text


def test_special_tokens(kind: str, ours: Tokenizer, theirs: sentencepiece.SentencePieceProcessor) -> None:
    assert ours.vocab_size == theirs.get_piece_size()
    begins = [theirs.bos_id()] if KINDS[kind]["model_type"] == "bpe" else []
    ends = [theirs.eos_id()] if KINDS[kind]["model_type"] == "unigram" else []
    assert ours.encode("the") == [*begins, *theirs.encode("the"), *ends]
    assert ours.eos_token_id == theirs.eos_id()
    assert ours.is_special(theirs.eos_id())
    assert ours.encode("</s>", add_special_tokens=False) == [theirs.eos_id()]


@pytest.mark.parametrize("kind", ["llama"], indirect=True)
@pytest.mark.parametrize(("legacy", "spaced"), [(None, True), (True, True), (False, False)])
def test_the_space_behind_a_special_token(
    kind: str, trained: bytes, tmp_path: Path, legacy: bool | None, spaced: bool
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained)
    config = {"add_bos_token": True} | ({} if legacy is None else {"legacy": legacy})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(str(tmp_path))
    tokens = [tokenizer.token_text(index) for index in tokenizer.encode("the</s>the")]
    assert tokens == ["<s>", "\u2581the", "</s>", *(["\u2581the"] if spaced else ["th", "e"])]


@pytest.mark.parametrize("raw", [b"", b"\x0a", b"no protocol buffer", b"\xff" * 40, b"\x0a\x02\x08\x01"])
def test_damage_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: (cannot be read|is a SentencePiece model of a kind)"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("kind", ["llama"], indirect=True)
def test_a_cut_file_is_named(kind: str, trained: bytes, tmp_path: Path) -> None:
    refused = 0
    for size in range(1, len(trained) - 1, 997):
        (tmp_path / "m.model").write_bytes(trained[:size])
        with contextlib.suppress(CheckpointError):
            pieces, _ = read_sentencepiece(tmp_path / "m.model")
            assert len(pieces.texts) == len(pieces.scores) == len(pieces.kinds) > 0
            continue
        refused += 1
    assert refused > 10


def test_models_of_words_are_refused(tmp_path: Path) -> None:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g"] * 3),
        model_writer=written,
        model_type="word",
        vocab_size=10,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    (tmp_path / "tokenizer.model").write_bytes(written.getvalue())
    with pytest.raises(CheckpointError, match="of a kind that Octavo does not rebuild"):
        load_tokenizer(str(tmp_path))
