"""Text to token ids and back."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, models

from octavo.base.errors import CheckpointError, InvalidRequestError
from octavo.base.unicode import check_unicode
from octavo.checkpoint.gguf import read_gguf
from octavo.checkpoint.json_file import JsonObject, read_json_if_there
from octavo.checkpoint.tokenizer_files import tokenizer_file
from octavo.checkpoint.vocabularies import WordStyle
from octavo.frontend.text.byte_bpe import byte_bpe, byte_characters, set_affixes
from octavo.frontend.text.gguf_vocabulary import build_tokenizer
from octavo.frontend.text.pieces import pieces_tokenizer
from octavo.frontend.text.sentencepiece_file import read_sentencepiece
from octavo.frontend.text.tiktoken_file import is_tiktoken, read_tekken, read_tiktoken

_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """A model's tokenizer.

    special_tokens: names ("bos_token", "eos_token" …) -> text, as chat templates want them. vocab_size: ids are below it.
    byte_level: every token is a run of bytes, and a text is all of them joined and read as UTF-8.
    byte_fallback: tokens such as "<0xE4>" stand for bytes, and only whole runs of them can be read.
    """

    def __init__(self, core: tokenizers.Tokenizer, special_tokens: dict[str, str] | None = None) -> None:
        core.no_truncation()
        core.no_padding()
        self._core = core
        self.special_tokens = dict(special_tokens or {})
        added = core.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self._special = frozenset(index for index, token in added.items() if token.special)
        self._characters = byte_characters()
        self._bytes: dict[int, bytes] = {}
        # Of tokens that detokenizers have seen to be whole characters, no special ones.
        self.whole_texts: dict[int, str] = {}
        self.vocab_size = max([core.get_vocab_size(with_added_tokens=True), *(index + 1 for index in added)])
        steps = _decoder_steps(core)
        self.byte_level = steps == ["ByteLevel"]
        self.byte_fallback = "ByteFallback" in steps

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens written out in it are recognized.

        add_special_tokens: put in what the model expects around a text (BOS). False for a rendered chat, which has them.
        Raises InvalidRequestError for text that is not Unicode (lone surrogates).
        """
        try:
            # The batch call lets other threads run meanwhile: a long text does not stop the server's event loop.
            return self._core.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            check_unicode(text, "prompt")
            raise InvalidRequestError(f"the text cannot be tokenized: {error}", field="prompt") from error

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`. Ids without a token give nothing; incomplete characters give U+FFFD."""
        if self.byte_level:
            kept = (i for i in ids if not (skip_special_tokens and i in self._special))
            return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        known = [index for index in ids if 0 <= index < self.vocab_size]
        return self._core.decode(known, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that one token stands for; nothing for an id without a token.

        A token may be part of a character: only the bytes of several joined are sure to be UTF-8.
        """
        found = self._bytes.get(index)
        if found is None:
            if not 0 <= index < self.vocab_size:
                return b""
            found = self._bytes[index] = self._read_bytes(index)
        return found

    def token_text(self, index: int) -> str | None:
        """Return a token as it stands in the vocabulary, None for an id without one."""
        return self._core.id_to_token(index) if 0 <= index < self.vocab_size else None

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that stands so in the vocabulary, None if there is none."""
        return self._core.token_to_id(text)

    def special_within(self, texts: str) -> dict[int, str]:
        """Return the special tokens that are a part of a text, by their ids."""
        return {index: self._added[index] for index in self._special if self._added[index] in texts}

    @functools.cached_property
    def markers(self) -> dict[str, int]:
        """Tokens that stand for no text by their texts: special ones, and what is added and looks like a tag."""
        tagged = {i for i, text in self._added.items() if len(text) > 2 and text[0] + text[-1] in ("<>", "[]")}
        return {self._added[index]: index for index in sorted(tagged | self._special)}

    def is_special(self, index: int) -> bool:
        """Whether a token is a special one, which `skip_special_tokens` leaves out."""
        return index in self._special

    @property
    def bos_token_id(self) -> int | None:
        """The id of the token that begins a text."""
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token that, by the tokenizer's own word, ends a text."""
        return self._id_of("eos_token")

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._core.token_to_id(text)

    def _read_bytes(self, index: int) -> bytes:
        if index in self._added:
            return self._added[index].encode()
        text = self.token_text(index)
        if text is None:
            return b""
        if self.byte_level:
            characters = self._characters
            known = all(character in characters for character in text)
            return bytes(characters[character] for character in text) if known else text.encode()
        if self.byte_fallback and is_byte_token(text):
            return bytes((int(text[3:5], 16),))
        return text.replace("\u2581", " ").encode()


def is_byte_token(text: str) -> bool:
    """Whether a SentencePiece-like token stands for one byte: "<0xE4>"."""
    if len(text) != 6 or not text.startswith("<0x") or text[5] != ">":
        return False
    return all(digit in "0123456789ABCDEFabcdef" for digit in text[3:5])


def load_tokenizer(source: str) -> Tokenizer:
    """Load from a folder (`checkpoint/tokenizer_files.py`) or a .gguf file; raises CheckpointError saying what is wrong."""
    path = Path(source)
    if path.is_file() and path.suffix == ".gguf":
        return Tokenizer(*build_tokenizer(read_gguf(source)))
    return _load_folder(path)


def _load_folder(folder: Path) -> Tokenizer:
    config = read_json_if_there(folder / "tokenizer_config.json")
    core, names = _read(tokenizer_file(folder) or folder / "tokenizer.json", config)
    _add_missing(core, config)
    names |= _named(config) or _named(read_json_if_there(folder / "special_tokens_map.json"))
    names = {name: text for name, text in names.items() if core.token_to_id(text) is not None}
    _mark_special(core, names)
    if config.has("add_bos_token") or config.has("add_eos_token"):
        first = names.get("bos_token") if config.flag("add_bos_token", False) else None
        last = names.get("eos_token") if config.flag("add_eos_token", False) else None
        set_affixes(core, first, last)
    return Tokenizer(core, names)


def _read(file: Path, config: JsonObject) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Return the tokenizer of one file, and the special tokens that the file itself names."""
    try:
        if file.name == "tokenizer.json":
            return tokenizers.Tokenizer.from_file(str(file)), {}
        if file.name == "vocab.json":
            # From files, so that merges are read as they were written: some begin with a comment.
            model = models.BPE.from_file(str(file), str(file.with_name("merges.txt")))
            return byte_bpe(model, WordStyle()), {}
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    if file.name == "tekken.json":
        core, names = read_tekken(file)
        set_affixes(core, names.get("bos_token"), None)
        return core, names
    if is_tiktoken(file):
        return read_tiktoken(file), {}
    # Without a word on it, the space before a text is put where SentencePiece itself puts it.
    pieces, names = read_sentencepiece(file, first_only=not config.flag("legacy", True))
    try:
        core = pieces_tokenizer(pieces)
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"{file}: the pieces do not make a tokenizer: {error}") from error
    # Models with unigram vocabularies (T5) end a text, the others begin it.
    first, last = (None, names.get("eos_token")) if pieces.unigram else (names.get("bos_token"), None)
    set_affixes(core, first, last)
    return core, names


def _add_missing(core: tokenizers.Tokenizer, config: JsonObject) -> None:
    """Add the tokens that only tokenizer_config.json knows; their ids must come out as it says."""
    declared = config.object("added_tokens_decoder") or JsonObject(config.place, {})
    for index in sorted(declared.values, key=lambda key: (len(key), key)):
        entry = declared.object(index)
        content = entry.text("content") if entry is not None else ""
        if entry is None or core.token_to_id(content) is not None:
            continue
        special = entry.flag("special", False)
        core.add_tokens([AddedToken(content, special=special, normalized=entry.flag("normalized", not special))])
        if str(core.token_to_id(content)) != index:
            raise declared.fail(
                index, f"is {content!r}, but the tokenizer has {core.token_to_id(content)} as its next free id"
            )


def _named(config: JsonObject) -> dict[str, str]:
    """Read "bos_token" and its like, each a text or an object with one."""
    named: dict[str, str] = {}
    for name in _NAMES:
        value: Any = config.values.get(name)
        if isinstance(value, dict):
            value = JsonObject(f"{config.place}: {name}", value).text("content")
        if value is not None:
            if not isinstance(value, str):
                raise config.fail(name, f"must be a token's text, not {value!r}")
            named[name] = value
    return named


def _mark_special(core: tokenizers.Tokenizer, names: dict[str, str]) -> None:
    """Named tokens are special, also where tokenizer.json does not say so."""
    added = core.get_added_tokens_decoder()
    for text in dict.fromkeys(names.values()):
        index = core.token_to_id(text)
        if index not in added or not added[index].special:
            core.add_special_tokens([AddedToken(text, special=True, normalized=False)])


def _decoder_steps(core: tokenizers.Tokenizer) -> list[str]:
    """Name the steps of a tokenizer's decoder in order."""
    if core.decoder is None:
        return []
    described: Any = json.loads(core.decoder.__getstate__())
    steps: list[Any] = described["decoders"] if described["type"] == "Sequence" else [described]
    return [step["type"] for step in steps]
