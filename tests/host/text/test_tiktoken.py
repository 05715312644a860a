"""Ranked vocabularies, tiktoken's and tekken's, and the two files of GPT-2's kind give the ids of the tiktoken package."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo.base.errors import CheckpointError
from octavo.checkpoint.vocabularies import LLAMA3, TEKKEN
from octavo.frontend.text.byte_bpe import byte_characters
from octavo.frontend.text.tokenizer import Tokenizer, load_tokenizer
from tests.texts import NUMERALS, TEXTS

# Merges in the order in which training would find them, and some that can be made of different parts.
_MERGED = (b"th", b"he", b"in", b" t", b" a", b"the", b" the", b"ing", b"an", b"and", b" and", b"  ", b"    ", b"\n\n",
           b"er", b"'s", b"12", b"123", b"aa", b"aaa", b"aaaa", b"aba", b"ab", b"ba", b"\xe4\xbd", b"\xe4\xbd\xa0",
           b"\xf0\x9f", b"\xf0\x9f\x98", b"do", b"lo", b"or", b"lor", b" lor", b"em", b" dolor", b"\xc3\xa9", b".\n")  # fmt: skip
RANKS = {token: rank for rank, token in enumerate([*(bytes((byte,)) for byte in range(256)), *_MERGED])}
# What mistral-common calls the special tokens of a file that does not list them.
SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
    *(f"<SPECIAL_{index}>" for index in range(20, 24)),
)
NUM_SPECIAL = len(SPECIALS)


def tiktoken_file() -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items())


def tekken(**changes: Any) -> dict[str, Any]:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for t, rank in RANKS.items()
    ]
    config = {
        "pattern": TEKKEN,
        "default_vocab_size": len(RANKS) + NUM_SPECIAL,
        "default_num_special_tokens": NUM_SPECIAL,
    }
    # More are trained than are used.
    beyond = [{"rank": len(RANKS), "token_bytes": base64.b64encode(b"zzz").decode(), "token_str": "zzz"}]
    return {"config": config | changes, "vocab": vocab + beyond}


@pytest.fixture(scope="module", params=["qwen.tiktoken", "tokenizer.model", "tekken.json"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, tiktoken.Encoding]:
    folder = tmp_path_factory.mktemp("model")
    is_tekken = request.param == "tekken.json"
    raw = json.dumps(tekken()).encode() if is_tekken else tiktoken_file()
    (folder / request.param).write_bytes(raw)
    special = dict(zip(SPECIALS, range(NUM_SPECIAL), strict=True)) if is_tekken else {"<|end|>": len(RANKS)}
    if not is_tekken:
        added = {str(index): {"content": text, "special": True} for text, index in special.items()}
        (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    ranks = {token: rank + NUM_SPECIAL * is_tekken for token, rank in RANKS.items()}
    pattern = TEKKEN if is_tekken else LLAMA3
    encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return load_tokenizer(str(folder)), encoding


def test_texts(pair: tuple[Tokenizer, tiktoken.Encoding]) -> None:
    ours, theirs = pair
    for text in (*TEXTS, *NUMERALS, "<|end|>a</s>[INST]b[IMG]<pad><SPECIAL_23>"):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, allowed_special="all"), text
        assert ours.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=400, deadline=None)
@given(text=st.one_of(st.text(max_size=40), st.text("abABthe n'sin123\n你é😀/", max_size=50)))
def test_any_text(pair: tuple[Tokenizer, tiktoken.Encoding], text: str) -> None:
    ours, theirs = pair
    # Names of special tokens, which hypothesis finds in the sources, are in one of the two vocabularies only.
    assume(not re.search(r"\[[A-Z_/]+\]|<[^<>]*>", text))
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, allowed_special="all")


def test_tekken_names_its_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.vocab_size == len(RANKS) + NUM_SPECIAL
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.encode("the") == [1, NUM_SPECIAL + RANKS[b"the"]]
    assert [tokenizer.token_text(index) for index in (10, 17, 20)] == ["[IMG]", "[SYSTEM_PROMPT]", "<SPECIAL_20>"]
    assert tokenizer.is_special(23)
    listed = [{"rank": 20, "token_str": "[THINK]", "is_control": True}]
    (tmp_path / "tekken.json").write_text(json.dumps(tekken() | {"special_tokens": listed}))
    assert load_tokenizer(str(tmp_path)).encode("[THINK]", add_special_tokens=False) == [20]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.tiktoken", b"", "is no tiktoken file: it holds no tokens"),
        ("a.tiktoken", b"!!!! 3\n", "is no tiktoken file"),
        ("a.tiktoken", b"YQ== 3 4\n", "is no tiktoken file"),
        ("tekken.json", json.dumps(tekken(pattern=None)).encode(), "'pattern' is missing"),
        (
            "tekken.json",
            json.dumps(tekken(default_num_special_tokens=None)).encode(),
            "'default_num_special_tokens' is",
        ),
        ("tekken.json", json.dumps(tekken() | {"vocab": [{"rank": 0, "token_bytes": "*"}]}).encode(), "is not base64"),
        (
            "tekken.json",
            json.dumps(tekken() | {"special_tokens": [{"rank": 99, "token_str": "x"}]}).encode(),
            "'rank' is 99, but there are 24",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(CheckpointError, match=message) as error:
        load_tokenizer(str(tmp_path))
    assert name in error.value.message


def test_a_vocabulary_with_its_merges_in_two_files(tmp_path: Path) -> None:
    letters = {byte: character for character, byte in byte_characters().items()}
    vocabulary = {"".join(letters[byte] for byte in token): rank for token, rank in RANKS.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary | {"</s>": len(RANKS)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nth e\nĠ t\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "</s>", "add_bos_token": True}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert [tokenizer.token_text(index) for index in tokenizer.encode("the then's")] == [
        *("</s>", "the", "Ġ", "the", "n"),
        "'",
        "s",
    ]
