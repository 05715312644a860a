"""A SentencePiece vocabulary as a `tokenizers` object. Source: Kudo and Richardson 2018, github.com/google/sentencepiece.

Its "BPE" joins the two neighbours whose joint piece has the best score, so the merges follow from the scores; "unigram"
takes the pieces whose scores have the largest sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from octavo.frontend.text.byte_bpe import merges_of

# Kinds of pieces, numbered alike in SentencePiece's and in GGUF's files.
NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
BYTE: Final = 6
_SPACE: Final = "\u2581"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A vocabulary, and what is done to a text before it is cut up. scores, kinds: one for each of `texts`.

    prefix: a space is put before a text: always, or ("first") not behind special tokens. trimmed: spaces at both ends and
    all but one of several are dropped. charsmap: SentencePiece's compiled table of characters to replace.
    """

    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    unigram: bool
    prefix: str | None = "always"
    trimmed: bool = False
    charsmap: bytes = b""


def pieces_tokenizer(pieces: Pieces) -> Tokenizer:
    """Return the tokenizer, without special tokens around a text; raises an Exception if the parts do not fit."""
    # User-defined pieces are found in the text as it comes, before spaces are written as U+2581.
    texts = [
        text.replace(_SPACE, " ") if kind == USER_DEFINED else text
        for text, kind in zip(pieces.texts, pieces.kinds, strict=True)
    ]
    core = Tokenizer(_unigram(pieces, texts) if pieces.unigram else _bpe(pieces, texts))
    core.normalizer = normalizers.Sequence(_normalizers(pieces))
    if pieces.prefix == "first":
        core.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if pieces.prefix else []))
    core.add_tokens(added_tokens(texts, pieces.kinds))
    return core


def added_tokens(texts: Sequence[str], kinds: Sequence[int]) -> list[AddedToken]:
    """Return the tokens that are found whole in a text: control and unknown tokens are special, user-defined ones are not."""
    return [
        AddedToken(text, special=kind != USER_DEFINED, normalized=False)
        for text, kind in zip(texts, kinds, strict=True)
        if text and kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _unknown(pieces: Pieces) -> int | None:
    return next((index for index, kind in enumerate(pieces.kinds) if kind == UNKNOWN), None)


def _bpe(pieces: Pieces, texts: list[str]) -> models.BPE:
    scores, unknown = pieces.scores, _unknown(pieces)
    normal = [index for index, kind in enumerate(pieces.kinds) if kind == NORMAL]
    normal.sort(key=lambda index: -scores[index])
    ranked = [texts[index] for index in normal]
    return models.BPE(
        vocab={text: index for index, text in enumerate(texts)},
        merges=list(merges_of(ranked, frozenset(ranked))),
        unk_token=None if unknown is None else texts[unknown],
        fuse_unk=True,
        byte_fallback=BYTE in pieces.kinds,
    )


def _unigram(pieces: Pieces, texts: list[str]) -> models.Unigram:
    vocabulary = list(zip(texts, pieces.scores, strict=True))
    return models.Unigram(vocabulary, _unknown(pieces), byte_fallback=BYTE in pieces.kinds)


def _normalizers(pieces: Pieces) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if pieces.charsmap:
        steps.append(normalizers.Precompiled(pieces.charsmap))
    if pieces.trimmed:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if pieces.prefix == "always":
        steps.append(normalizers.Prepend(_SPACE))
    if pieces.prefix != "first":
        steps.append(normalizers.Replace(" ", _SPACE))
    return steps
