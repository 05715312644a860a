"""Byte-level BPE from ranked tokens: tiktoken files ("BASE64 RANK" a line) and Mistral's tekken.json.

A token's rank says how early it is merged, whatever its two parts are. Sources: github.com/openai/tiktoken,
github.com/mistralai/mistral-common.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, models

from octavo.base.errors import CheckpointError
from octavo.checkpoint.json_file import JsonObject, read_json
from octavo.checkpoint.vocabularies import LLAMA3, WordStyle
from octavo.frontend.text.byte_bpe import byte_bpe, byte_characters, merges_of

# What the first special tokens of a tekken.json are called that does not list them; the others are <SPECIAL_n>.
_TEKKEN_SPECIALS: Final = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
_TEKKEN_NAMES: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def is_tiktoken(path: Path) -> bool:
    """Whether a file is a list of ranked tokens: Llama 3 calls its one tokenizer.model, as SentencePiece files are called."""
    try:
        if path.suffix == ".tiktoken":
            return True
        with path.open("rb") as file:
            first = file.readline(1000).split()
            return len(first) == 2 and bool(base64.b64decode(first[0], validate=True)) and first[1].isdigit()
    except (OSError, ValueError):
        return False


def read_tiktoken(path: Path) -> Tokenizer:
    """Return the tokenizer, without special tokens: those are in other files. Words are cut as Llama 3 does.

    Raises CheckpointError naming the file and what is wrong.
    """
    tokens: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line:
                token, rank = line.split()
                tokens[base64.b64decode(token, validate=True)] = int(rank)
        if not tokens:
            raise ValueError("it holds no tokens")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is no tiktoken file: {error}") from error
    return _ranked(path, tokens, WordStyle(patterns=(LLAMA3,), whole=True))


def read_tekken(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Return the tokenizer and its named special tokens; raises CheckpointError naming the file and key that is wrong."""
    whole = read_json(path)
    config = whole.object("config") or JsonObject(f"{path}: config", {})
    num_special = config.integer("default_num_special_tokens")
    num_ranked = config.integer("default_vocab_size") - num_special
    entries = [JsonObject(f"{path}: vocab", entry) for entry in (whole.list("vocab") or [])[: max(num_ranked, 0)]]
    try:
        tokens = {
            base64.b64decode(each.text("token_bytes"), validate=True): each.integer("rank") + num_special
            for each in entries
        }
    except binascii.Error as error:
        raise CheckpointError(f"{path}: vocab: 'token_bytes' is not base64: {error}") from error
    names = [f"<SPECIAL_{index}>" for index in range(num_special)]
    names[: len(_TEKKEN_SPECIALS)] = _TEKKEN_SPECIALS[:num_special]
    listed = [JsonObject(f"{path}: special_tokens", entry) for entry in whole.list("special_tokens") or ()]
    for entry in listed:
        index = entry.integer("rank")
        if index >= num_special:
            raise entry.fail("rank", f"is {index}, but there are {num_special} special tokens")
        names[index] = entry.text("token_str")
    style = WordStyle(patterns=(config.text("pattern"),), whole=True)
    core = _ranked(path, tokens, style, special={name: index for index, name in enumerate(names)})
    return core, {name: text for name, text in _TEKKEN_NAMES.items() if text in names}


def _ranked(path: Path, tokens: dict[bytes, int], style: WordStyle, special: dict[str, int] | None = None) -> Tokenizer:
    """tokens: id of each; the lower of two is merged first."""
    letters = {byte: character for character, byte in byte_characters().items()}
    vocabulary = {"".join([letters[byte] for byte in token]): index for token, index in tokens.items()}
    ranked = sorted(vocabulary, key=vocabulary.__getitem__)
    special = special or {}
    try:
        model = models.BPE(vocab=special | vocabulary, merges=list(merges_of(ranked, vocabulary.keys())))
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"{path}: the tokens do not fit together: {error}") from error
    core = byte_bpe(model, style)
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return core
