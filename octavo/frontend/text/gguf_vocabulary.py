"""A tokenizer rebuilt from a GGUF file's vocabulary: byte-level BPE, or SentencePiece's BPE or unigram model."""

from __future__ import annotations

from typing import Final

from tokenizers import Tokenizer, models

from octavo.base.errors import CheckpointError
from octavo.base.logging import get_logger
from octavo.checkpoint.gguf import GgufFile
from octavo.checkpoint.vocabularies import STYLES, VOCABULARY_KINDS, WordStyle
from octavo.frontend.text.byte_bpe import byte_bpe, set_affixes
from octavo.frontend.text.pieces import NORMAL, Pieces, added_tokens, pieces_tokenizer

_log = get_logger(__name__)

_KEY: Final = "tokenizer.ggml."
_NAMES: Final = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id"} | {
    "pad_token": "padding_token_id"
}


def build_tokenizer(file: GgufFile) -> tuple[Tokenizer, dict[str, str]]:
    """Return the tokenizer and its named special tokens ("bos_token" …); raises CheckpointError naming the bad key."""
    model = file.text(_KEY + "model")
    tokens = file.strings(_KEY + "tokens")
    names = _named(file, tokens)
    if model not in VOCABULARY_KINDS:
        raise CheckpointError(f"{file.path}: {_KEY}model is {model!r}; Octavo rebuilds {', '.join(VOCABULARY_KINDS)}")
    kind = VOCABULARY_KINDS[model]
    if kind == "bytes":
        style = _style(file)
        core, add_bos = _byte_level(file, tokens, style), style.add_bos
    else:
        core, add_bos = _sentencepiece(file, tokens, unigram=kind == "unigram"), kind == "pieces"
    first = names.get("bos_token") if file.flag(_KEY + "add_bos_token", add_bos) else None
    last = names.get("eos_token") if file.flag(_KEY + "add_eos_token", kind == "unigram") else None
    set_affixes(core, first, last)
    return core, names


def _byte_level(file: GgufFile, tokens: list[str], style: WordStyle) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges(file)
    try:
        core = byte_bpe(models.BPE(vocab=vocabulary, merges=merges), style)
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"{file.path}: {_KEY}merges do not fit {_KEY}tokens: {error}") from error
    core.add_tokens(added_tokens(tokens, _kinds(file, tokens)))
    return core


def _sentencepiece(file: GgufFile, tokens: list[str], *, unigram: bool) -> Tokenizer:
    scores = file.numbers(_KEY + "scores")
    if len(scores) != len(tokens):
        raise CheckpointError(f"{file.path}: {_KEY}scores has {len(scores)} entries for {len(tokens)} tokens")
    charsmap = _KEY + "precompiled_charsmap"
    pieces = Pieces(
        texts=tokens,
        scores=scores,
        kinds=_kinds(file, tokens),
        unigram=unigram,
        prefix="always" if file.flag(_KEY + "add_space_prefix", True) else None,
        trimmed=file.flag(_KEY + "remove_extra_whitespaces", False),
        charsmap=bytes(int(each) & 255 for each in file.numbers(charsmap)) if charsmap in file.metadata else b"",
    )
    try:
        return pieces_tokenizer(pieces)
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"{file.path}: {_KEY}tokens do not make a tokenizer: {error}") from error


def _style(file: GgufFile) -> WordStyle:
    if _KEY + "pre" not in file.metadata:
        _log.warning("%s does not name its pre-tokenizer (%spre): words are cut as GPT-2 does", file.path, _KEY)
    name = file.text(_KEY + "pre", "default")
    if name not in STYLES:
        raise CheckpointError(f"{file.path}: {_KEY}pre is {name!r}; Octavo has {', '.join(STYLES)}")
    return STYLES[name]


def _merges(file: GgufFile) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for index, line in enumerate(file.strings(_KEY + "merges")):
        left, _, right = line.partition(" ")
        if not left or not right:
            raise CheckpointError(f"{file.path}: {_KEY}merges[{index}] is {line!r}, not two parts")
        merges.append((left, right))
    return merges


def _kinds(file: GgufFile, tokens: list[str]) -> list[int]:
    if _KEY + "token_type" not in file.metadata:
        return [NORMAL] * len(tokens)
    kinds = [int(kind) for kind in file.numbers(_KEY + "token_type")]
    if len(kinds) != len(tokens):
        raise CheckpointError(f"{file.path}: {_KEY}token_type has {len(kinds)} entries for {len(tokens)} tokens")
    return kinds


def _named(file: GgufFile, tokens: list[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, key in _NAMES.items():
        index = file.integer(_KEY + key, -1)
        if index >= len(tokens):
            raise CheckpointError(f"{file.path}: {_KEY}{key} is {index}, beyond the vocabulary of {len(tokens)}")
        if index >= 0:
            named[name] = tokens[index]
    return named
