"""Which file of a folder is its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The first that is there is taken: what a model's maker converted already is exact.
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "vocab.json",
)


def tokenizer_file(folder: Path) -> Path | None:
    """Return the file of a folder that holds its tokenizer, None if there is none."""
    for name in TOKENIZER_FILES:
        if (folder / name).is_file() and (name != "vocab.json" or (folder / "merges.txt").is_file()):
            return folder / name
    return next(iter(sorted(folder.glob("*.tiktoken"))), None)
