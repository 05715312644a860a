"""A SentencePiece file (tokenizer.model, spiece.model) read without the sentencepiece package.

The file is one protocol buffer, sentencepiece_model.proto in github.com/google/sentencepiece. Encoding of the wire:
protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from octavo.base.errors import CheckpointError
from octavo.frontend.text.pieces import NORMAL, Pieces

# Field numbers. Of the model:
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
# Of a piece:
_TEXT, _SCORE, _KIND = 1, 2, 3
# Of the trainer's settings:
_MODEL_TYPE, _SPACE_AS_SUFFIX = 3, 24
_IDS: Final = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
# Of the normalizer's settings:
_CHARSMAP, _ADD_PREFIX, _TRIM, _ESCAPE = 2, 3, 4, 5
_UNIGRAM, _BPE = 1, 2

_Fields = dict[int, int | bytes]


def read_sentencepiece(path: Path, *, first_only: bool = False) -> tuple[Pieces, dict[str, str]]:
    """Return the vocabulary and its named special tokens ("bos_token" …).

    first_only: a space is put before a text, but not behind special tokens in it. Raises CheckpointError naming the file
    and what is wrong or not supported.
    """
    try:
        raw = path.read_bytes()
        model = list(_fields(raw))
        pieces = [dict(_fields(_bytes(value))) for number, value in model if number == _PIECE]
        settings = {
            number: dict(_fields(_bytes(value))) for number, value in model if number in (_TRAINER, _NORMALIZER)
        }
        trainer, normalizer = settings.get(_TRAINER, {}), settings.get(_NORMALIZER, {})
        texts = [_bytes(piece[_TEXT]).decode("utf-8") for piece in pieces]
        scores = [struct.unpack("<f", _bytes(piece.get(_SCORE, bytes(4))))[0] for piece in pieces]
        charsmap = _bytes(normalizer.get(_CHARSMAP, b""))
    except (OSError, ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise CheckpointError(f"{path}: cannot be read, or is no SentencePiece model: {error!r}") from error
    kind = trainer.get(_MODEL_TYPE, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE) or trainer.get(_SPACE_AS_SUFFIX) or not normalizer.get(_ESCAPE, 1) or not texts:
        raise CheckpointError(
            f"{path}: is a SentencePiece model of a kind that Octavo does not rebuild (words or characters)"
        )
    found = Pieces(
        texts=texts,
        scores=scores,
        kinds=[int(piece.get(_KIND, NORMAL)) for piece in pieces],
        unigram=kind == _UNIGRAM,
        prefix=("first" if first_only else "always") if normalizer.get(_ADD_PREFIX, 1) else None,
        trimmed=bool(normalizer.get(_TRIM, 1)),
        charsmap=charsmap,
    )
    ids = {name: _signed(trainer.get(number, default)) for name, (number, default) in _IDS.items()}
    return found, {name: texts[index] for name, index in ids.items() if 0 <= index < len(texts)}


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value): whole numbers as int, all else as bytes. The last of several in a dict is what counts."""
    position, size = 0, len(raw)
    while position < size:
        key, position = _varint(raw, position)
        wire = key & 7
        if wire == 0:
            value, position = _varint(raw, position)
            yield key >> 3, value
            continue
        if wire == 2:
            length, position = _varint(raw, position)
        else:
            length = {1: 8, 5: 4}[wire]
        if position + length > size:
            raise ValueError(f"a field of {length} bytes at {position} reaches beyond the end")
        yield key >> 3, raw[position : position + length]
        position += length


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    """Return a number in groups of seven bits, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number where bytes should be")
    return value


def _signed(value: int | bytes) -> int:
    """Read a number's 64 bits as signed: -1 stands for a token that the vocabulary lacks."""
    number = value if isinstance(value, int) else 0
    return number - 2**64 if number >= 2**63 else number
