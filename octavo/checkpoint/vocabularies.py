"""The kinds of vocabularies, and of cutting a text into words, under the names that GGUF files give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

# tokenizer.ggml.model: byte-level BPE, SentencePiece's BPE, SentencePiece's unigram model.
VOCABULARY_KINDS: Final[dict[str, Literal["bytes", "pieces", "unigram"]]] = {
    "gpt2": "bytes",
    "llama": "pieces",
    "t5": "unigram",
}
# How words are cut before merging, published with the models themselves.
_GPT2: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Words may change from small to capital letters, and not back.
_SMALL, _CAPITAL = r"\p{Ll}\p{Lm}\p{Lo}\p{M}", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_CASED: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_CAPITAL}]*[{_SMALL}]+@|[^\r\n\p{{L}}\p{{N}}]?[{_CAPITAL}]+[{_SMALL}]*@"
    r"|\p{N}#| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN: Final = _CASED.replace("@", "").replace("#", "")
_GPT4O: Final = _CASED.replace("@", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("#", "{1,3}")
_DEEPSEEK3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordStyle:
    """How a text becomes words. patterns: applied one after another, each to the pieces of the one before.

    whole: a word that is a token is not merged up from its bytes. add_bos: unless the vocabulary's file says.
    """

    patterns: tuple[str, ...] = (_GPT2,)
    nfc: bool = False
    whole: bool = False
    add_bos: bool = False


_DIGITS: Final = WordStyle(patterns=(r"\p{N}", _GPT2))
_LLAMA3_STYLE: Final = WordStyle(patterns=(LLAMA3,), whole=True, add_bos=True)
_QWEN2_STYLE: Final = WordStyle(patterns=(_QWEN2,), nfc=True)
# By the names that GGUF files use (tokenizer.ggml.pre).
STYLES: Final = {
    **dict.fromkeys(("default", "gpt-2", "mpt", "olmo", "jais", "phi-2"), WordStyle()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), _LLAMA3_STYLE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), WordStyle(patterns=(LLAMA3,))),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), _QWEN2_STYLE),
    **dict.fromkeys(("gpt-4o", "llama4"), WordStyle(patterns=(_GPT4O,), whole=True)),
    "tekken": WordStyle(patterns=(TEKKEN,), whole=True, add_bos=True),
    "deepseek-v3": WordStyle(patterns=(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
}
