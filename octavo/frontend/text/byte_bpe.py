"""Byte-level BPE built from parts: a vocabulary, its merges or the ranks they follow from, and how words are cut before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from octavo.checkpoint.vocabularies import WordStyle


def byte_characters() -> dict[str, int]:
    """Return the alphabet in which bytes are written (from GPT-2), character -> byte.

    Printable bytes stand for themselves, the others are numbered from U+0100 up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def byte_bpe(model: models.BPE, style: WordStyle) -> Tokenizer:
    """Return the tokenizer of a model whose tokens are written in the byte alphabet."""
    model.ignore_merges = style.whole
    core = Tokenizer(model)
    if style.nfc:
        core.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in style.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    core.decoder = decoders.ByteLevel()
    return core


def merges_of(ranked: Iterable[str], parts: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the merges that make the tokens of `ranked`, the most wanted first, from `parts`: all ways to cut each in two."""
    for token in ranked:
        for cut in range(1, len(token)):
            if token[:cut] in parts and token[cut:] in parts:
                yield token[:cut], token[cut:]


def set_affixes(core: Tokenizer, first: str | None, last: str | None) -> None:
    """Make `encode` put these special tokens before and after a text."""
    pieces = [*([first] if first else []), "$A", *([last] if last else [])]
    special = [(token, core.token_to_id(token)) for token in dict.fromkeys((first, last)) if token]
    core.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=special)
