"""Tokenizers of several kinds, small or embedded."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from octavo.frontend.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def smollm(demo_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(demo_gguf))


@pytest.fixture(scope="session")
def sentencepiece_like() -> Tokenizer:
    """As Llama 2's: "▁" for spaces, byte tokens for what the vocabulary lacks, and no space at the beginning of a text."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "▁▁", "▁a", "b", "▁b", "a", "é", "▁é", "\n", "你", ".", "▁你好"]
    merges = [("▁", "▁"), ("▁", "a"), ("▁", "b"), ("▁", "é")]
    core = tokenizers.Tokenizer(
        models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return Tokenizer(core, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture(scope="session")
def metaspace() -> Tokenizer:
    """As T5's and newer SentencePiece conversions: a Metaspace decoder."""
    words = ["<pad>", "▁", "▁a", "b", "▁b", "a", "é", "\n"]
    core = tokenizers.Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    core.decoder = decoders.Metaspace()
    core.add_special_tokens([AddedToken("<pad>", special=True, normalized=False)])
    return Tokenizer(core)


@pytest.fixture(scope="session")
def wordpiece() -> Tokenizer:
    words = ["[PAD]", "a", "##b", "##a", "b", ".", "'", "s"]
    core = tokenizers.Tokenizer(models.WordPiece(vocab={w: i for i, w in enumerate(words)}, unk_token="[PAD]"))
    core.decoder = decoders.WordPiece(cleanup=False)
    core.add_special_tokens([AddedToken("[PAD]", special=True, normalized=False)])
    return Tokenizer(core)
