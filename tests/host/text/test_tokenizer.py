"""Tokenizers from GGUF files and folders: how words are cut, special tokens, bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from octavo.base.errors import CheckpointError, InvalidRequestError
from octavo.frontend.text.byte_bpe import byte_characters
from octavo.frontend.text.tokenizer import Tokenizer, load_tokenizer
from tests.host.checkpoint.gguf_writer import embedding, llama_metadata, write

ALPHABET = [character for character, _ in sorted(byte_characters().items(), key=lambda pair: pair[1])]
WORDS = ["<s>", "</s>", "<think>", *ALPHABET, "12", "123", "he", "'s", "'S", "ĠĠ"]


def gguf_tokenizer(tmp_path: Path, pre: str | None = "gpt-2", **changes: Any) -> Tokenizer:
    """A byte-level vocabulary: two control tokens, a user-defined one, all bytes, and a few merges."""
    metadata = llama_metadata() | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": WORDS,
        "tokenizer.ggml.token_type": [3, 3, 4, *[1] * (len(WORDS) - 3)],
        "tokenizer.ggml.merges": ["1 2", "12 3", "h e", "' s", "' S", "Ġ Ġ"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return load_tokenizer(write(tmp_path / "t.gguf", metadata, [embedding()]))


def tokens(tokenizer: Tokenizer, text: str, **options: bool) -> list[str | None]:
    return [tokenizer.token_text(index) for index in tokenizer.encode(text, **options)]


def test_smollm2(smollm: Tokenizer):
    assert smollm.vocab_size == 49152
    assert smollm.special_tokens["bos_token"] == "<|im_start|>"
    assert (smollm.bos_token_id, smollm.eos_token_id) == (1, 2)
    assert smollm.encode("<|im_start|>user\nHi<|im_end|>\n") == [1, 4093, 198, 26843, 2, 198]
    assert smollm.byte_level


def test_smollm2_cuts_digits_first(smollm: Tokenizer):
    """The last of several spaces belongs to a following word, but never to a digit."""
    assert tokens(smollm, "a  1b  c") == ["a", "ĠĠ", "1", "b", "Ġ", "Ġc"]
    assert tokens(smollm, "1234") == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "1234  5he'S", ["123", "4", "Ġ", "Ġ", "5", "he", "'", "S"]),
        (None, "1234's", ["123", "4", "'s"]),
        ("default", "a  b", ["a", "Ġ", "Ġ", "b"]),
        ("smollm", "1234  5", ["1", "2", "3", "4", "ĠĠ", "5"]),
        ("llama-bpe", "1234  5", ["123", "4", "Ġ", "Ġ", "5"]),
        ("llama-bpe", "a'Sa", ["a", "'S", "a"]),
        ("qwen2", "1234", ["1", "2", "3", "4"]),
    ],
)
def test_words_are_cut_as_the_file_says(tmp_path: Path, pre: str | None, text: str, expected: list[str]):
    assert tokens(gguf_tokenizer(tmp_path, pre), text, add_special_tokens=False) == expected


def test_qwen2_composes_characters(tmp_path: Path):
    decomposed = "e\u0301"
    assert gguf_tokenizer(tmp_path, "qwen2").decode(gguf_tokenizer(tmp_path, "qwen2").encode(decomposed)) == "\u00e9"
    assert gguf_tokenizer(tmp_path, "gpt-2").decode(gguf_tokenizer(tmp_path, "gpt-2").encode(decomposed)) == decomposed


@pytest.mark.parametrize(
    ("pre", "changes", "first", "last"),
    [
        ("gpt-2", {}, False, False),
        ("gpt-2", {"add_bos_token": True}, True, False),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, True, True),
        ("llama-bpe", {}, True, False),
        ("llama-bpe", {"add_bos_token": False}, False, False),
        ("gpt-2", {"add_bos_token": True, "bos_token_id": None}, False, False),
    ],
)
def test_what_is_put_around_a_text(tmp_path: Path, pre: str, changes: dict[str, Any], first: bool, last: bool):
    tokenizer = gguf_tokenizer(tmp_path, pre, **changes)
    assert tokens(tokenizer, "a") == ["<s>"] * first + ["a"] + ["</s>"] * last
    assert tokens(tokenizer, "a", add_special_tokens=False) == ["a"]
    assert tokens(tokenizer, "") == ["<s>"] * first + ["</s>"] * last


def test_token_types(tmp_path: Path):
    tokenizer = gguf_tokenizer(tmp_path)
    ids = tokenizer.encode("<s>a<think>he</s>")
    assert ids == [0, tokenizer.token_id("a"), 2, tokenizer.token_id("he"), 1]
    assert [tokenizer.is_special(index) for index in (0, 1, 2, 3)] == [True, True, False, False]
    assert tokenizer.decode(ids) == "a<think>he"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>a<think>he</s>"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"model": "llama"}, "tokenizer.ggml.scores: is missing"),
        ({"pre": "tekken-9"}, "tokenizer.ggml.pre is 'tekken-9'; Octavo has default, gpt-2, mpt"),
        ({"tokens": None}, "tokenizer.ggml.tokens: is missing"),
        ({"merges": None}, "tokenizer.ggml.merges: is missing"),
        ({"merges": ["he"]}, "tokenizer.ggml.merges[0] is 'he'"),
        ({"merges": ["q q"]}, "tokenizer.ggml.merges do not fit"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 entries"),
        ({"bos_token_id": 10_000}, "tokenizer.ggml.bos_token_id is 10000"),
    ],
)
def test_a_bad_vocabulary_is_named(tmp_path: Path, changes: dict[str, Any], message: str):
    with pytest.raises(CheckpointError) as error:
        gguf_tokenizer(tmp_path, **changes)
    assert message in error.value.message
    assert "t.gguf" in error.value.message


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(-5, 49160), max_size=30))
def test_token_bytes_joined_are_the_text(smollm: Tokenizer, ids: list[int]):
    joined = b"".join(smollm.token_bytes(index) for index in ids)
    assert joined.decode("utf-8", "replace") == smollm.decode(ids, skip_special_tokens=False)


def test_token_bytes(smollm: Tokenizer, sentencepiece_like: Tokenizer):
    assert [smollm.token_bytes(index) for index in smollm.encode(" the\n")] == [b" the", b"\n"]
    assert b"".join(smollm.token_bytes(index) for index in smollm.encode("é😀")) == "é😀".encode()
    assert smollm.token_bytes(2) == b"<|im_end|>"
    assert smollm.token_bytes(49152) == smollm.token_bytes(-1) == b""
    assert [sentencepiece_like.token_bytes(i) for i in (2, 3 + 0xE4, 260)] == [b"</s>", b"\xe4", b"  "]


def test_text_that_is_not_unicode_is_refused(smollm: Tokenizer):
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        smollm.encode("a\ud800b")


def folder(tmp_path: Path, config: dict[str, Any] | None = None, *, post: bool = False) -> Path:
    """A byte-level tokenizer.json as Hugging Face has it, cut short and padded as some are left by training."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    if post:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    core.enable_truncation(max_length=3)
    core.enable_padding(length=8, pad_token="<s>")
    core.save(str(tmp_path / "tokenizer.json"))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_folder(tmp_path: Path):
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": "<none such>"}
    tokenizer = load_tokenizer(str(folder(tmp_path, config, post=True)))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokens(tokenizer, "hehehe") == ["<s>", "he", "he", "he"], "neither cut short nor padded"
    assert tokenizer.is_special(1), "a named token is special, whatever tokenizer.json says"
    assert tokens(tokenizer, "a</s>") == ["<s>", "a", "</s>"]


def test_flags_win_over_tokenizer_json(tmp_path: Path):
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokens(load_tokenizer(str(folder(tmp_path, names | {"add_bos_token": False}, post=True))), "a") == ["a"]
    both = names | {"add_bos_token": True, "add_eos_token": True}
    assert tokens(load_tokenizer(str(folder(tmp_path, both))), "a") == ["<s>", "a", "</s>"]


def test_tokens_that_only_the_config_knows(tmp_path: Path):
    size = len(WORDS)
    added = {
        "0": {"content": "<s>", "special": True},
        str(size): {"content": "<|call|>", "special": True},
        str(size + 1): {"content": "<tool>", "special": False},
    }
    tokenizer = load_tokenizer(str(folder(tmp_path, {"added_tokens_decoder": added})))
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.encode("<|call|>a<tool>") == [size, tokenizer.token_id("a"), size + 1]
    assert (tokenizer.is_special(size), tokenizer.is_special(size + 1)) == (True, False)
    with pytest.raises(CheckpointError, match=f"'{size + 7}' is '<x>'"):
        load_tokenizer(str(folder(tmp_path, {"added_tokens_decoder": {str(size + 7): {"content": "<x>"}}})))


def test_a_folder_without_or_with_a_broken_tokenizer(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        load_tokenizer(str(tmp_path))


def test_a_text_with_bos_written_out_and_encoded_plain_has_one(tmp_path: Path):
    tokenizer = gguf_tokenizer(tmp_path, "llama-bpe")
    assert tokenizer.encode("<s>a", add_special_tokens=False).count(0) == 1
