"""A tiny random model of bytes whose vocabulary is padded: 259 tokens, and 64 ids that are none."""

from __future__ import annotations

from pathlib import Path

from tests.equivalence.models import SIZES
from tests.frontend.bytes_model import EOS, TEMPLATE, make_core
from tests.models.oracle import make_oracle

NUM_TOKENS = 259
NUM_IDS = NUM_TOKENS + 64


def save_padded(folder: Path) -> Path:
    """Write the model with its tokenizer and template; returns the folder."""
    make_oracle("llama", {**SIZES, "vocab_size": NUM_IDS, "eos_token_id": EOS}).save_pretrained(folder)
    make_core().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
