"""A tokenizer rebuilt from a GGUF file's vocabulary (byte-level BPE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from octavo.base.errors import CheckpointError
from octavo.base.logging import get_logger
from octavo.checkpoint.gguf import GgufFile

_log = get_logger(__name__)

# Token types in tokenizer.ggml.token_type.
_NORMAL: Final = 1
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_KEY: Final = "tokenizer.ggml."
_NAMES: Final = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id"} | {
    "pad_token": "padding_token_id"
}
# How words are cut before merging, published with the models themselves.
_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """One pre-tokenizer. pattern: None is GPT-2's own. digits: every digit is a word. add_bos: unless the file says."""

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2: Final = _Style()
_STYLES: Final = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _Style(digits=True),
    "llama-bpe": _Style(pattern=_LLAMA3, ignore_merges=True, add_bos=True),
    "llama3": _Style(pattern=_LLAMA3, ignore_merges=True, add_bos=True),
    "qwen2": _Style(pattern=_QWEN2, nfc=True),
}


def build_tokenizer(file: GgufFile) -> tuple[Tokenizer, dict[str, str]]:
    """Return the tokenizer and its named special tokens ("bos_token" …); raises CheckpointError naming the bad key."""
    model = file.text(_KEY + "model")
    if model != "gpt2":
        raise CheckpointError(f"{file.path}: {_KEY}model is {model!r}; Octavo rebuilds 'gpt2' (byte-level BPE)")
    style = _style(file)
    tokens, merges = file.strings(_KEY + "tokens"), _merges(file)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=style.ignore_merges))
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"{file.path}: {_KEY}merges do not fit {_KEY}tokens: {error}") from error
    if style.nfc:
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = _pre_tokenizer(style)
    core.decoder = decoders.ByteLevel()
    core.add_tokens(_added(file, tokens))
    names = _named(file, tokens)
    _set_template(file, core, names, style)
    return core, names


def _style(file: GgufFile) -> _Style:
    if _KEY + "pre" not in file.metadata:
        _log.warning("%s does not name its pre-tokenizer (%spre): words are cut as GPT-2 does", file.path, _KEY)
    name = file.text(_KEY + "pre", "default")
    if name not in _STYLES:
        raise CheckpointError(f"{file.path}: {_KEY}pre is {name!r}; Octavo has {', '.join(_STYLES)}")
    return _STYLES[name]


def _merges(file: GgufFile) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for index, line in enumerate(file.strings(_KEY + "merges")):
        left, _, right = line.partition(" ")
        if not left or not right:
            raise CheckpointError(f"{file.path}: {_KEY}merges[{index}] is {line!r}, not two parts")
        merges.append((left, right))
    return merges


def _pre_tokenizer(style: _Style) -> pre_tokenizers.PreTokenizer:
    if style.digits:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if style.pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    cut = pre_tokenizers.Split(Regex(style.pattern), behavior="isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _added(file: GgufFile, tokens: list[str]) -> list[AddedToken]:
    """Return the tokens that are found whole in a text: control tokens are special, user-defined ones are not."""
    types = file.numbers(_KEY + "token_type") if _KEY + "token_type" in file.metadata else [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise CheckpointError(f"{file.path}: {_KEY}token_type has {len(types)} entries for {len(tokens)} tokens")
    return [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if token and kind in (_CONTROL, _USER_DEFINED)
    ]


def _named(file: GgufFile, tokens: list[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, key in _NAMES.items():
        index = file.integer(_KEY + key, -1)
        if index >= len(tokens):
            raise CheckpointError(f"{file.path}: {_KEY}{key} is {index}, beyond the vocabulary of {len(tokens)}")
        if index >= 0:
            named[name] = tokens[index]
    return named


def _set_template(file: GgufFile, core: Tokenizer, names: dict[str, str], style: _Style) -> None:
    add_bos = file.flag(_KEY + "add_bos_token", style.add_bos)
    add_eos = file.flag(_KEY + "add_eos_token", False)
    set_affixes(core, names.get("bos_token") if add_bos else None, names.get("eos_token") if add_eos else None)


def set_affixes(core: Tokenizer, first: str | None, last: str | None) -> None:
    """Make `encode` put these special tokens before and after a text."""
    pieces = [*([first] if first else []), "$A", *([last] if last else [])]
    special = [(token, core.token_to_id(token)) for token in dict.fromkeys((first, last)) if token]
    core.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=special)
